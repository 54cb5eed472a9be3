"""The user's own data: folders, tables, arrays, the Hugging Face Hub."""
