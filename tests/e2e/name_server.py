"""A DNS server of one process on loopback, which knows the records of type SRV that a test gives it."""

from __future__ import annotations

import asyncio
from pathlib import Path

import dns.flags
import dns.message
import dns.rcode
import dns.rrset


class NameServer(asyncio.DatagramProtocol):
    """Answers over UDP. ``services``: the text of the records of each name: "PRIORITY WEIGHT PORT HOST."."""

    def __init__(self) -> None:
        self.services: dict[str, list[str]] = {}
        self.asked: list[str] = []
        self.port = 0

    async def open(self) -> None:
        loop = asyncio.get_running_loop()
        self.transport, _ = await loop.create_datagram_endpoint(lambda: self, local_addr=("127.0.0.1", 0))
        self.port = self.transport.get_extra_info("sockname")[1]

    def close(self) -> None:
        self.transport.close()

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        query = dns.message.from_wire(data)
        (question,) = query.question
        name = question.name.to_text(omit_final_dot=True)
        self.asked.append(name)
        reply = dns.message.make_response(query)
        reply.flags |= dns.flags.AA
        if name not in self.services:
            reply.set_rcode(dns.rcode.NXDOMAIN)
        elif self.services[name]:
            reply.answer.append(dns.rrset.from_text(question.name, 1, "IN", "SRV", *self.services[name]))
        self.transport.sendto(reply.to_wire(), addr)

    def site(self, folder: Path) -> Path:
        """A folder for PYTHONPATH of programs that shall ask this server, and not that of the machine."""
        folder.mkdir()
        (folder / "sitecustomize.py").write_text(
            "import dns.asyncresolver\n"
            "resolver = dns.asyncresolver.default_resolver = dns.asyncresolver.Resolver(configure=False)\n"
            f"resolver.nameservers, resolver.port = ['127.0.0.1'], {self.port}\n"
        )
        return folder
