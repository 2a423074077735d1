"""What metad knows: tables, the commands that change them, and the machine that applies their effects.

Pure but for the engine it is given: no event loop, no socket, no Raft; clocks come in from outside.

- :mod:`.verb`, :mod:`.registry`: the registry; a table is a declaration, a verb is a row
- :mod:`.sessions`, :mod:`.offsets`, :mod:`.kv`: the three tables and the rules of their own
- :mod:`.consumers`, :mod:`.consumer_groups`: the members of consumer groups
- :mod:`.live`: what lasts for as long as somebody speaks for it
- :mod:`.view`: what a command sees while it is evaluated; :mod:`.row_cache`: what of it is in flight
- :mod:`.machine`: evaluate -> entry -> apply, and recovery; :mod:`.entry`: an entry's format
- :mod:`.log_time`: the time of a group's log, by which deadlines are judged
- :mod:`.part`: what memory keeps of the state; :mod:`.registry` lists all verbs and parts
- :mod:`.dedupe`: a retried write happens once
- :mod:`.slot_assignment`, :mod:`.slot_migration`: the slots of a group, and how they move
- :mod:`.owners`: bounded memory of who owns which session; :mod:`.row_cache`: the same of rows
"""
