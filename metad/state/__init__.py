"""What metad knows: tables, the commands that change them, and the machine that applies their effects.

Pure but for the engine it is given: no event loop, no socket, no Raft; clocks come in from outside.

- :mod:`.core.verb`, :mod:`.registry`: the registry; a table is a declaration, a verb is a row
- :mod:`.session.sessions`, :mod:`.consumer.offsets`, :mod:`.kv`: tables with rules of their own
- :mod:`.consumer.consumers`, :mod:`.consumer.consumer_groups`: the members of consumer groups
- :mod:`.live`: what lasts for as long as somebody speaks for it
- :mod:`.core.view`: what a command sees while it is evaluated
- :mod:`.machine`: evaluate -> entry -> apply, recovery, and the time of a group's log, by which deadlines are judged;
  :mod:`.core.entry`: an entry's format
- :mod:`.core.part`: what memory keeps of the state; :mod:`.registry` lists all verbs and parts
- :mod:`.cluster.dedupe`: a retried write happens once
- :mod:`.core.slot_assignment`, :mod:`.moving.slot_migration`: the slots of a group, and how they move
- :mod:`.session.owners`: bounded memory of who owns which session
"""
