"""The machine: processor, threads, memory, files; imports nothing of the library."""
