"""The same design under other names: Hugging Face's configurations and weights, read and written.

A `Design` (designs/<model type>.py) is data: entries that translate the configuration and rules that translate the
weights, each both ways. `Facts` are a model section in words; all comparisons of designs are comparisons of facts.
"""
