"""What is sent when, what has arrived, and what is sent again."""
