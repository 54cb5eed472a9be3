"""What knows nothing of learning: processor, threads, memory, steps that a GPU replays, files, ranges of values; imports nothing of the library."""
