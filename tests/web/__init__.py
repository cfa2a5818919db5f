"""The dashboard and the metrics."""
