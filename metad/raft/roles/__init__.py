"""What a replica does as a follower, in elections and as a leader, and the clocks and promises between them."""
