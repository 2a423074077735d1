"""``metad-console``: what a cluster does, in a browser. A process of its own, so that a node has no web surface.

It is a client of the cluster like any other: through the SDK, and with the rights of whoever signs in. A request goes
through :mod:`.admission` (which host, whose session) to a page of :mod:`.pages`, and the page reads with the client of
its :mod:`session <.sessions>`. What is live comes from the session's :mod:`poll <.polling>`, once a second for all its
pages.
"""
