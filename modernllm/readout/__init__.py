"""Readouts: made with `readout(norm)`, used as `stream -> x`; what stands between the stream and the head."""
