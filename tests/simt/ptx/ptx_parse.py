# SPDX-License-Identifier: Apache-2.0
"""Lexer and parser of nvcc's PTX (ISA 6 to 9): a Module of variables and functions, with scopes resolved."""
import re
from dataclasses import dataclass, field

from ptx_table import SPECIAL, TYPES


class PtxError(Exception):
    pass


@dataclass
class Operand:
    kind: str  # reg imm sym special mem vec list sink
    text: str = ""  # register, symbol or number
    items: list = field(default_factory=list)  # of vec and list; of mem the base
    offset: int = 0  # of mem and sym
    negated: bool = False


@dataclass
class Instr:
    line: int
    loc: tuple  # (file, line) of the source, or None
    guard: tuple  # (negated, register) or None
    op: str
    operands: list


@dataclass
class Label:
    name: str


@dataclass
class Var:
    space: str
    align: int
    type: str
    name: str
    count: int  # -1: unsized
    init: list  # None: zero
    external: bool = False


@dataclass
class Function:
    name: str
    entry: bool
    params: list
    rets: list
    regs: list = field(default_factory=list)  # (type, name)
    vars: list = field(default_factory=list)  # .local and .param
    tables: dict = field(default_factory=dict)  # of brx.idx
    body: list = field(default_factory=list)
    max_threads: int = 0
    defined: bool = False


@dataclass
class Module:
    name: str
    vars: list = field(default_factory=list)
    functions: dict = field(default_factory=dict)
    version: str = ""
    target: str = ""


TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[.%$\w]+(?:::[.%$\w]+)*|[@!{}\[\](),;:=+|<>*-]|\S')
NUMBER = re.compile(r"0[xX][0-9a-fA-F]+U?|0[fF][0-9a-fA-F]{8}|0[dD][0-9a-fA-F]{16}|0[bB][01]+U?|\d+U?")
LINKAGE = {".visible", ".extern", ".weak", ".common"}
# Attributes of functions. None matters here, except the size of a block.
ATTRIBUTES = {".maxntid", ".reqntid", ".minnctapersm", ".maxnctapersm", ".maxnreg", ".noreturn", ".pragma",
              ".blocksareclusters", ".maxclusterrank", ".reqnctapercluster", ".explicitcluster", ".unique"}


def number(text):
    t = text.rstrip("U") if not text.startswith(("0f", "0F", "0d", "0D")) else text
    if t[:2] in ("0f", "0F", "0d", "0D"):
        return int(t[2:], 16)
    if len(t) > 1 and t[0] == "0" and t[1] not in "xXbB":
        return int(t, 8)
    return int(t, 0)


class Parser:
    def __init__(self, text, name):
        self.module = Module(name)
        self.tokens = []  # (text, line, loc)
        self.pos = 0
        self.files = {}
        self.scopes = []
        self.names = set()
        self.serial = 0
        self.lex(re.sub(r"/\*.*?\*/", lambda m: "\n" * m.group().count("\n"), text, flags=re.S))

    def lex(self, text):
        loc = None
        for n, line in enumerate(text.split("\n"), 1):
            line = re.sub(r'("(?:[^"\\]|\\.)*")|//.*', lambda m: m.group(1) or "", line)
            file = re.match(r'\s*\.file\s+(\d+)\s+"([^"]*)"', line)
            if file:
                self.files[int(file.group(1))] = file.group(2)
                continue
            where = re.match(r"\s*\.loc\s+(\d+)\s+(\d+)", line)
            if where:
                loc = (self.files.get(int(where.group(1)), "?"), int(where.group(2))) if int(where.group(2)) else None
                continue
            self.tokens += [(t, n, loc) for t in TOKEN.findall(line)]

    # ---- tokens ----
    def peek(self, ahead=0):
        return self.tokens[self.pos + ahead][0] if self.pos + ahead < len(self.tokens) else ""

    def line(self):
        return self.tokens[min(self.pos, len(self.tokens) - 1)][1] if self.tokens else 0

    def fail(self, what):
        raise PtxError(f"{self.module.name}:{self.line()}: {what}")

    def next(self):
        if self.pos >= len(self.tokens):
            self.fail("unexpected end")
        self.pos += 1
        return self.tokens[self.pos - 1][0]

    def accept(self, text):
        if self.peek() == text:
            self.pos += 1
            return True
        return False

    def expect(self, text):
        if not self.accept(text):
            self.fail(f"expected '{text}', found '{self.peek()}'")

    def skip_to(self, text):
        while self.next() != text:
            pass

    def integer(self):
        sign = -1 if self.accept("-") else 1
        t = self.next()
        if not NUMBER.fullmatch(t):
            self.fail(f"expected a number, found '{t}'")
        return sign * number(t)

    # ---- module ----
    def parse(self):
        while self.pos < len(self.tokens):
            external = False
            while self.peek() in LINKAGE:
                external |= self.next() == ".extern"
            t = self.peek()
            if t == ".version":
                self.next()
                self.module.version = self.next()
            elif t == ".target":
                self.next()
                self.module.target = self.next()
                while self.accept(","):
                    self.next()
            elif t == ".address_size":
                self.next()
                if self.integer() != 64:
                    self.fail("addresses must have 64 bits")
            elif t in (".shared", ".global", ".const"):
                self.module.vars.append(self.variable(external))
                self.expect(";")
            elif t in (".entry", ".func"):
                self.function()
            elif t == ".section":
                self.skip_to("{")
                self.skip_to("}")
            elif t in (".alias", ".pragma"):
                if t == ".alias":
                    self.fail("unsupported directive '.alias'")
                self.skip_to(";")
            elif t == ";":
                self.next()
            else:
                self.fail(f"unsupported directive '{t}'")
        return self.module

    def variable(self, external=False):
        space = self.next()[1:]
        align, kind = 0, None
        while self.peek().startswith("."):
            t = self.next()[1:]
            if t == "align":
                align = self.integer()
            elif t == "ptr":
                if self.peek() in (".global", ".shared", ".const", ".local"):
                    self.next()
                if self.accept(".align"):
                    self.integer()
            elif t in TYPES:
                kind = t
            elif t == "attribute":
                self.skip_to(")")
            else:
                self.fail(f"unsupported variable attribute '.{t}'")
        name = self.next()
        count, init = 1, None
        while self.accept("["):
            if self.accept("]"):
                count = -1
            else:
                count *= self.integer()
                self.expect("]")
        if self.accept("="):
            init = self.initialiser()
        return Var(space, align or TYPES[kind][1], kind, name, count, init, external)

    def initialiser(self):
        if not self.accept("{"):
            if not NUMBER.fullmatch(self.peek()) and self.peek() != "-":
                self.fail(f"unsupported initialiser '{self.peek()}'")
            return [self.integer()]
        values = []
        while not self.accept("}"):
            values += self.initialiser()
            self.accept(",")
        return values

    def parameters(self):
        params = []
        if self.accept("("):
            while not self.accept(")"):
                params.append(self.variable() if self.peek() == ".param" else self.fail("expected .param"))
                self.accept(",")
        return params

    def function(self):
        entry = self.next() == ".entry"
        rets = self.parameters() if not entry else []
        f = Function(self.next(), entry, [], rets)
        f.params = self.parameters()
        while self.peek() in ATTRIBUTES:
            t = self.next()
            sizes = []
            while NUMBER.fullmatch(self.peek()):
                sizes.append(self.integer())
                self.accept(",")
            if t in (".maxntid", ".reqntid"):
                f.max_threads = 1
                for s in sizes:
                    f.max_threads *= s
            if t == ".pragma":
                self.skip_to(";")
        if self.accept("{"):
            f.defined = True
            self.body(f)
        elif not self.accept(";"):
            self.fail(f"unsupported function attribute '{self.peek()}'")
        if f.defined or f.name not in self.module.functions:
            self.module.functions[f.name] = f

    # ---- bodies ----
    def body(self, f):
        self.scopes = [{v.name: v.name for v in f.params + f.rets}]
        self.names = set(self.scopes[0])
        self.registered = set()  # names that are registers, with or without a percent sign
        while True:
            t = self.peek()
            if t == "{":
                self.next()
                self.scopes.append({})
            elif t == "}":
                self.next()
                self.scopes.pop()
                if not self.scopes:
                    return
            elif t == ".reg":
                self.registers(f)
            elif t in (".local", ".param", ".shared", ".const", ".global"):
                v = self.variable()
                self.expect(";")
                v.name = self.declare(v.name)
                (f.vars if t in (".local", ".param") else self.module.vars).append(v)
            elif t == ".pragma":
                self.skip_to(";")
            elif self.peek(1) == ":":
                self.label(f)
            elif t == ";":
                self.next()
            elif t.startswith("."):
                self.fail(f"unsupported directive '{t}'")
            else:
                self.instruction(f)

    def declare(self, name):
        """Names of nested scopes become names of the function: C++ may not jump over declarations."""
        unique = name
        while unique in self.names:
            self.serial += 1
            unique = f"{name}__{self.serial}"
        self.names.add(unique)
        self.scopes[-1][name] = unique
        return unique

    def registers(self, f):
        self.next()
        kind = self.next()[1:]
        if kind not in TYPES:
            self.fail(f"unsupported register type '.{kind}'")
        while True:
            name = self.next()
            if self.accept("<"):
                found = [self.declare(f"{name}{i}") for i in range(self.integer())]
                self.expect(">")
            else:
                found = [self.declare(name)]
            f.regs += [(kind, unique) for unique in found]
            self.registered.update(found)
            if not self.accept(","):
                break
        self.expect(";")

    def label(self, f):
        name = self.next()
        self.next()
        if self.accept(".branchtargets"):
            targets = []
            while not self.accept(";"):
                t = self.next()
                if t != ",":
                    targets.append(t)
            f.tables[name] = targets
        elif self.peek() == ".callprototype":
            self.skip_to(";")
        else:
            f.body.append(Label(name))

    def instruction(self, f):
        line, loc = self.line(), self.tokens[self.pos][2]
        guard = None
        if self.accept("@"):
            negated = self.accept("!")
            guard = (negated, self.lookup(self.next()))
        op = self.next()
        operands = []
        while not self.accept(";"):
            operands.append(self.operand())
            if not self.accept(",") and self.peek() not in (";", "|"):
                self.fail(f"cannot read the operands of '{op}' at '{self.peek()}'")
            if self.accept("|"):
                operands[-1].items.append(self.operand())  # the second destination, d|p
                self.accept(",")
        f.body.append(Instr(line, loc, guard, op, operands))

    def lookup(self, name):
        for scope in reversed(self.scopes):
            if name in scope:
                return scope[name]
        return None

    def operand(self):
        t = self.next()
        if t == "!":
            o = self.operand()
            o.negated = True
            return o
        if t == "-":
            return Operand("imm", str(-number(self.next())))
        if t in "[{(":
            close = {"[": "]", "{": "}", "(": ")"}[t]
            o = Operand({"[": "mem", "{": "vec", "(": "list"}[t])
            while not self.accept(close):
                o.items.append(self.operand())
                self.accept(",")
            if t == "[":
                o.offset = o.items[0].offset
            return o
        if NUMBER.fullmatch(t):
            return Operand("imm", t)
        if t == "_":
            return Operand("sink")
        offset = 0
        name = self.lookup(t)
        if self.peek() in ("+", "-"):
            self.accept("+")
            offset = self.integer()
        if name is not None and name in self.registered:
            return Operand("reg", name, offset=offset)
        if name is not None:
            return Operand("sym", name, offset=offset)
        if t.startswith("%"):
            if t not in SPECIAL:
                self.fail(f"unsupported special register '{t}'")
            return Operand("special", t)
        return Operand("sym", t, offset=offset)


def parse(text, name):
    return Parser(text, name).parse()
