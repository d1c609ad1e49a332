"""Text to batches: corpus -> split by document -> tokenizer -> token files -> windows."""
