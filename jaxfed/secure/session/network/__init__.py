"""A session whose clients are in processes of their own: letters, both ends, and how they are carried."""
