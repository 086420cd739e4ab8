"""The instructions that touch shared memory, one of which a probe kernel issues again and again."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["BY_NAME", "INSTRUCTIONS", "READ_BACK", "SMEM_BYTES", "SOURCE_BYTES", "Instruction"]

LANES = 32
SMEM_BYTES = 32 * 1024  # of shared memory that the probes may touch
SOURCE_BYTES = 4 << 20  # of global memory that one warp's copies read, at most
CTAS_OF_MANY, WARPS_OF_MANY = 132, 8  # a busy GPU: one CTA of eight warps for each SM
_TYPES = {1: "u8", 2: "u16", 4: "b32", 8: "v2.b32", 16: "v4.b32"}


@dataclass(frozen=True)
class Instruction:
    """One instruction of the PTX ISA, as a warp issues it."""

    name: str  # as in SASS, without the modifiers that do not matter here: "LDS.128"
    kind: str  # one of cookbook.access.KINDS
    width: int  # bytes at each address
    ptx: str  # the opcode with its modifiers
    registers: int  # 32-bit registers of a lane that it fills (loads) or reads (stores)
    num: int = 0  # matrices, of ldmatrix and stmatrix
    trans: bool = False
    guard: str = "predicate"  # of cp.async, what a lane without an address makes of it: "predicate", "size" or "none"
    waits: bool = True  # of cp.async: at once, for what it copies

    @property
    def opcode(self) -> str:
        """The beginning of its SASS."""
        return self.name.split(".")[0]

    @property
    def past_l1(self) -> bool:
        """True for a cp.async that leaves no copy in L1."""
        return "BYPASS" in self.name

    @property
    def loads(self) -> bool:
        """True if it reads shared memory; the others write it."""
        return self.opcode in ("LDS", "LDSM")

    @property
    def collective(self) -> bool:
        """True if every lane must take part (ldmatrix, stmatrix); the others go by lane."""
        return self.num > 0

    @property
    def may_skip_lanes(self) -> bool:
        """True if a lane may have no address and take no part."""
        return not self.collective and self.guard != "none"

    @property
    def lanes(self) -> int:
        """Lanes that supply an address."""
        return 8 * self.num or LANES

    def text(self) -> str:
        """The PTX to inline: {$r0} is the lane's offset, negative for none; {$r1} the shared-memory address.

        Stores take their values from {$r2} on; cp.async the global address in {$r2}; loads write {$w0} on, and a
        lane that takes no part gets zeros. A cp.async guarded by its size writes zeros for such a lane, one with no
        guard must not have any. In ldmatrix and stmatrix every lane takes part and there is no offset:
        their operands begin with the address, in {$r0}.
        """
        if self.kind == "cp_async":
            return self._copy()
        address = 0 if self.collective else 1
        names = [f"{{${f'w{i}' if self.loads else f'r{address + 1 + i}'}}}" for i in range(self.registers)]
        vector = f"{{{', '.join(names)}}}" if self.collective or self.registers > 1 else names[0]
        operands = f"{vector}, [{{$r{address}}}];" if self.loads else f"[{{$r{address}}}], {vector};"
        if self.collective:
            return f"{self.ptx} {operands}"
        clear = "".join(f"mov.b32 {name}, 0; " for name in names) if self.loads else ""
        return _guarded(f"{clear}@p {self.ptx} {operands}")

    def _copy(self) -> str:
        wait = " cp.async.wait_all;" if self.waits else ""
        copied = f"{self.ptx} [{{$r1}}], [{{$r2}}], {self.width}"
        if self.guard == "predicate":
            return _guarded(f"@p {copied};{wait}")
        if self.guard == "size":
            return _guarded(f".reg .b32 bytes; selp.b32 bytes, {self.width}, 0, p; {copied}, bytes;{wait}")
        # The compiler drops the predicate; the offset must be named all the same, or the operands would shift.
        return f"{{ .reg .b32 unused; mov.b32 unused, {{$r0}}; {copied};{wait} }}"


def _guarded(body: str) -> str:
    """`body` with predicate p true where the lane has an address."""
    return f"{{ .reg .pred p; setp.ge.s32 p, {{$r0}}, 0; {body} }}"


def _ldst() -> list[Instruction]:
    made = []
    for width, suffix in ((1, ".U8"), (2, ".U16"), (4, ""), (8, ".64"), (16, ".128")):
        registers = max(1, width // 4)
        for opcode, ptx in (("LDS", "ld"), ("STS", "st")):
            kind = f"{ptx}.volatile.shared.{_TYPES[width]}"  # volatile: neither merged with another nor dropped
            made.append(Instruction(opcode + suffix, "ldst", width, kind, registers))
    return made


def _matrices() -> list[Instruction]:
    made = []
    for kind, opcode in (("ldmatrix", "LDSM"), ("stmatrix", "STSM")):
        for trans in (False, True):
            for num in (1, 2, 4):
                name = f"{opcode}.16.{'MT88' if trans else 'M88'}{f'.{num}' if num > 1 else ''}"
                ptx = f"{kind}.sync.aligned.m8n8.x{num}{'.trans' if trans else ''}.shared.b16"
                made.append(Instruction(name, kind, 16, ptx, num, num, trans))
    return made


def _cp_async() -> list[Instruction]:
    cached = [
        Instruction(f"LDGSTS.E{suffix}", "cp_async", width, "cp.async.ca.shared.global", 0)
        for width, suffix in ((4, ""), (8, ".64"), (16, ".128"))
    ]
    # Unguarded, for ncu often counts nothing of it behind a predicate (`probes.forms`).
    past = "cp.async.cg.shared.global.L2::128B"
    return [*cached, Instruction("LDGSTS.E.BYPASS.LTC128B.128", "cp_async", 16, past, 0, guard="none")]


INSTRUCTIONS: tuple[Instruction, ...] = (*_ldst(), *_matrices(), *_cp_async())
BY_NAME = {instruction.name: instruction for instruction in INSTRUCTIONS}
# After a store each lane reads what is now at its address, as wide as the store was.
READ_BACK = {i.width: i for i in INSTRUCTIONS if i.opcode == "LDS"}
