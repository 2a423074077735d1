"""What a node tells as it happens: the streams of watches, and wills to those who publish them."""
