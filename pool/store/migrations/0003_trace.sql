-- Which trace a job belongs to, as W3C Trace Context: the traceparent; a space and the tracestate follow where there is one.
ALTER TABLE jobs ADD COLUMN trace_context TEXT;
ALTER TABLE jobs_archive ADD COLUMN trace_context TEXT;
