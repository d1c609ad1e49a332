"""What a person sees: progress, summaries, tables."""
