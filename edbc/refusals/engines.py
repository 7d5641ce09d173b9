"""The catalogue's entries on engines of many processes: ranks, jobs and servers. See `edbc.refusals`."""

from __future__ import annotations

from edbc.refusals import Refusal

ENGINES = (
    Refusal(
        "E0421",
        "StaleError",
        "Processes that must be alike are not",
        "Ranks compare versions, plan, model file, data and options before anything runs; workers of a job compare "
        "with the process that started it. One that differs would compute something else.",
        "Give all machines the same files and versions of edbc and torch.",
        says=("ranks: expected one", "worker: ", "expected the weights of sha256"),
    ),
    Refusal(
        "E0821",
        "EdbcError",
        "More workers than there is room for",
        "Workers that take all CPUs leave none for what reads files, and the job would hang without a word; the "
        "message has the arithmetic.",
        "Give fewer --workers.",
        says=("workers: expected at most",),
    ),
    Refusal(
        "E0822",
        "EdbcError",
        "Options of engines that do not go together",
        "--workers, --address, --on-error and --keep-order are of --engine, which writes parts to a folder and neither "
        "verifies nor traces.",
        "Leave out one of the two.",
        "$ edbc run plan.yaml --workers 2",
        says=("expected --engine", "expected --output FOLDER", "expected to run without --engine"),
    ),
    Refusal(
        "E0823",
        "EdbcError",
        "The output folder of a job is in use",
        "Parts of two jobs in one folder could not be told apart.",
        "Name another --output.",
        says=("expected an empty folder to write parts to",),
    ),
    Refusal(
        "E0221",
        "InputError",
        "A folder of input without files",
        "Hidden files are left out.",
        "Name other files or folders by --input.",
        says=("name others by --input",),
    ),
    Refusal(
        "E0621",
        "DeviceError",
        "An engine is not there, or gave up",
        "Ray is not installed, no cluster answers at the address, or what ran on it died; the message has the reason.",
        "Install edbc[reach], check --address, or use --engine processes.",
        says=("ray: ",),
    ),
    Refusal(
        "E0622",
        "DeviceError",
        "A worker of a pool ended",
        "It was killed, or the machine was out of memory. A pool does not start workers again.",
        "Use fewer --workers or a smaller --batch-size, or --engine ray, which starts workers again.",
        says=("processes: expected workers that live",),
    ),
    Refusal(
        "E0121",
        "ModelError",
        "A model server's configuration names no plan",
        "Triton's model binds the plan that config.pbtxt names.",
        "Write a parameter 'plan' into config.pbtxt.",
        says=("config.pbtxt: expected a parameter",),
    ),
    Refusal(
        "E0824",
        "EdbcError",
        "Another rank gave up",
        "A rank that could not read its own files, or that did not answer in time, ends all of them.",
        "See the error of that rank.",
        says=("ranks: expected all of them to answer", "rank {}: {}"),
    ),
)
