"""Readouts: made with `readout(norm)`, used as `stream -> x`; what stands between the stream and the head.

A placement that carries more than one stream says in `close` which of them is read.
"""
