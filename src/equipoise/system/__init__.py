"""What knows nothing of learning: processor, threads, memory, files, ranges of values; imports nothing of the library."""
