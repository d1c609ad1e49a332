"""What a run is called, what it leaves on disk, and how it ended."""
