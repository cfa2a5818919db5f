"""W3C Trace Context as a job carries it, for whoever shows it: a traceparent, behind a space the tracestate."""

import re

#: version-trace-parent-flags; what a later version may append is left to those who know it (w3.org/TR/trace-context).
_TRACEPARENT = re.compile(r"(?!ff)[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}(?![0-9a-f])")


def trace_id(trace_context: object) -> str | None:
    """The trace's id, by which tracing tools find it; None for anything that is no trace context."""
    found = _TRACEPARENT.match(trace_context) if isinstance(trace_context, str) else None
    return found[1] if found else None
