"""The command line: it parses, prints, and calls the other packages; nothing imports it."""
