"""What is used of Flower beyond its public interface, in one module: a new version of Flower may change any of it."""

import io
import warnings
import zipfile
from dataclasses import replace
from pathlib import Path

from flwr.app import Array, ArrayRecord, Context, Message, RecordDict
from flwr.common.config import flatten_dict
from flwr.common.secure_aggregation.crypto.shamir import combine_shares, create_shares
from flwr.common.secure_aggregation.crypto.symmetric_encryption import decrypt, encrypt
from flwr.common.serde import context_from_proto, context_to_proto, recorddict_from_proto, recorddict_to_proto
from flwr.proto.recorddict_pb2 import RecordDict as ProtoRecordDict
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity

__all__ = ["NODES", "Run", "combine_shares", "create_shares", "decrypt", "encrypt", "flatten_dict"]
NODES = """
import sys
from flwr.cli.utils import cli_output_control_client, flwr_cli_exc_handler, print_json_to_stdout
from flwr.proto.control_pb2 import ListNodesRequest
from google.protobuf.json_format import MessageToDict
with cli_output_control_client(sys.argv[3], "json") as (client, _), flwr_cli_exc_handler():
    print_json_to_stdout(MessageToDict(client.ListNodes(ListNodesRequest()), preserving_proto_field_name=True))
"""  # flwr supernode list, with the names of the sites, which it leaves out


def begin_task() -> None:
    """Let messages be made in this process, which Flower allows in a task only."""
    for name in ("run_id", "node_id", "task_id"):
        if getattr(TaskIdentity, f"_{name}") is None:
            setattr(TaskIdentity, name, 1)


def number(message: Message, number: str) -> None:
    """Number a message, as a SuperLink does."""
    message.metadata.__dict__.update(_message_id=number, _run_id=1, _src_node_id=0)


def delivered(records: RecordDict) -> RecordDict:
    """Records as they arrive: written to bytes and read again by Flower. The data of arrays, which are bytes already, are not copied.

    Raises
    ------
    TypeError, ValueError : a value that Flower cannot send.
    """
    arrays = {
        name: ArrayRecord({key: Array(array.dtype, array.shape, array.stype, b"") for key, array in record.items()})
        for name, record in records.array_records.items()
    }
    sent = recorddict_to_proto(RecordDict({**records, **arrays})).SerializeToString()
    arrived = recorddict_from_proto(ProtoRecordDict.FromString(sent))
    for name, record in arrived.array_records.items():
        for key, array in record.items():
            array.data = records.array_records[name][key].data
    return arrived


def delivered_context(context: Context) -> Context:
    """The context of a node as its app receives it, see :func:`delivered`."""
    arrived = context_from_proto(context_to_proto(replace(context, state=RecordDict())))
    return replace(arrived, state=delivered(context.state))


def unpacked_bundle(app: Path, directory: str) -> tuple[int, list[str], list[str]]:
    """Unpack what Flower would send of an app's folder: its bytes, its files, and the names of server app and client app.

    It raises whatever Flower does where it would not take the app.
    """
    from flwr.cli.build import build_fab_from_disk
    from flwr.cli.config_utils import load_and_validate

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of Flower, about what Flower uses
        parts = load_and_validate(app / "pyproject.toml")[0]["tool"]["flwr"]["app"]["components"]
        packed = build_fab_from_disk(app)
    with zipfile.ZipFile(io.BytesIO(packed)) as bundle:
        bundle.extractall(directory)
        return len(packed), bundle.namelist(), [parts["serverapp"], parts["clientapp"]]
