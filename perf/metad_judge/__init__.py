"""Whether what the clients of a store were told can have happened. Pure: knows no store, no network and no clock."""
