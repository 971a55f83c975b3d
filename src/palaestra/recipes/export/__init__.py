"""Export runs as Hugging Face datasets and as hub-ready model folders, and push them to the hub."""
