"""One file a model type of Hugging Face: `DESIGN`."""
