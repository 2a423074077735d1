"""The pages: a module each, with a function ``page`` that builds it for the session of its request."""
