"""What is measured on a GPU, and the records of it."""
