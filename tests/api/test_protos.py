# SPDX-License-Identifier: Apache-2.0
"""The generated code is what the .proto files say, needs the protobuf that we ask for, and is in nobody's way."""

import re
from importlib import import_module
from pathlib import Path

import pytest
from google.protobuf import descriptor_pb2, descriptor_pool
from google.protobuf.message import Message
from grpc_tools import protoc

from lockgate.protos import fmaas_pb2

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "lockgate" / "protos"
SOURCES = sorted(FOLDER.glob("*.proto"))


def compile_all(target: Path) -> dict[str, descriptor_pb2.FileDescriptorProto]:
    names = [path.relative_to(ROOT).as_posix() for path in SOURCES]
    assert protoc.main(["", f"-I{ROOT}", f"--descriptor_set_out={target}", *names]) == 0
    files = descriptor_pb2.FileDescriptorSet.FromString(target.read_bytes()).file
    return {one.name: one for one in files}


def without_json_names(message: Message) -> Message:
    """A description without the names that the compiler adds for JSON."""
    for field, value in message.ListFields():
        if field.name == "json_name":
            message.ClearField("json_name")
        elif field.message_type is not None and field.is_repeated:
            for one in value:
                without_json_names(one)
    return message


def test_the_generated_code_is_that_of_the_proto_files(tmp_path: Path) -> None:
    compiled = compile_all(tmp_path / "all")
    assert len(compiled) == len(SOURCES) == len(list(FOLDER.glob("*_pb2.py")))
    for name, file in compiled.items():
        generated = import_module(name.removesuffix(".proto").replace("/", ".") + "_pb2")
        ours = descriptor_pb2.FileDescriptorProto.FromString(generated.DESCRIPTOR.serialized_pb)
        assert ours == without_json_names(file), f"{name}: run `make protos`"


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*_pb2.py")), ids=lambda path: path.stem)
def test_the_protobuf_that_the_code_needs_is_the_one_that_we_ask_for(path: Path) -> None:
    needed = re.search(r"^# Protobuf Python Version: (\S+)$", path.read_text(encoding="utf-8"), re.MULTILINE)
    assert needed
    assert f'"protobuf>={needed[1]}"' in (ROOT / "pyproject.toml").read_text(encoding="utf-8")


def test_others_may_bring_their_own_copy_of_the_same_messages() -> None:
    theirs = descriptor_pb2.FileDescriptorProto(name="theirs.proto", package="fmaas", syntax="proto3")
    theirs.message_type.add(name="TokenInfo")
    descriptor_pool.Default().AddSerializedFile(theirs.SerializeToString())
    found = descriptor_pool.Default().FindMessageTypeByName("fmaas.TokenInfo")
    assert found is not fmaas_pb2.TokenInfo.DESCRIPTOR
