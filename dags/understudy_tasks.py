"""What the DAG files of Understudy share: the list of pairs, the assets, and tasks that call the `understudy` command.

It lies beside them in the DAG folder, defines no DAG, and imports Airflow only where a task is made. The heavy libraries are in
another environment or image, behind the command.
"""

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from datetime import UTC, datetime, timedelta
from typing import Any

EXIT_REFUSED = 3  # of all commands: refused, a drift, or not what was examined
EXIT_NO = 100  # of ASK_WAITING: no draft waits for approval

LIGHT = {"cpu": "1", "memory": "8Gi"}  # of a pod that trains and generates nothing; without a GPU
EVENT = "event"  # what started a retraining, in the asset event of its start

# The words of a call come as environment variables, never as command text: each value is one argument. With `--name=value` and
# `--`, a value that begins with a dash is not read as an option. The log shows which keys were set, not their values, and of
# environment variables that are named as secrets the names.
_BUILD = """
set -e
read -ra words <<< "$CALL_COMMAND"
call=("$CALL_EXECUTABLE" "${words[@]}" "--store=$CALL_STORE")
if [[ -n ${CALL_RUN:-} ]]; then call+=("--run=$CALL_RUN"); fi
if [[ -n ${CALL_SHARDS:-} ]]; then call+=("--shards=$CALL_SHARDS"); fi
if [[ -n ${CALL_IN_SHARDS:-} ]]; then call+=("--in-shards"); fi
shown=("${call[@]}")
while IFS= read -r override; do
    if [[ -n $override ]]; then call+=("--set=$override"); shown+=("--set=${override%%=*}=..."); fi
done <<< "${CALL_OVERRIDES:-}"
shown+=(-- "$CALL_SUBJECT")
shopt -s nocasematch
secrets=()
named='TOKEN|PASS|_PWD|SECRET|CREDENTIAL|APIKEY|_KEY|_AUTH$|AUTHORIZATION|_PAT$|_DSN|HOOK|_URL|_URI|_CONN'
for name in $(compgen -e); do
    if [[ $name =~ $named && ${!name} == ????* ]]; then secrets+=("$name"); fi
done
# The longest first: one secret may begin with another.
while read -r _ name; do
    if [[ -n $name ]]; then secret=${!name}; shown=("${shown[@]//"$secret"/[$name]}"); fi
done < <(for name in "${secrets[@]}"; do secret=${!name}; echo "$(expr length "$secret") $name"; done | sort -rn)
shopt -u nocasematch
printf 'calling:'; printf ' %q' "${shown[@]}"; printf '\\n'
"""

# With `exec`, a timeout of Airflow signals the command itself.
CALL = _BUILD + 'exec "${call[@]}" -- "$CALL_SUBJECT"\n'

# The command answers with JSON; exit codes 0 and 3 are answers too. The result is the last line, and in a pod the file that the
# XCom container reads.
ASK = (
    _BUILD
    + """code=0
said=$("${call[@]}" -- "$CALL_SUBJECT") || code=$?
printf '%s\\n' "$said"
[[ $code == 0 || $code == 3 ]] || exit "$code"
result="{\\"code\\": $code, \\"said\\": ${said//$'\\n'/ }}"
if [[ -d /airflow/xcom ]]; then printf '%s\\n' "$result" > /airflow/xcom/return.json; fi
printf '%s\\n' "$result"
"""
)

# `show --json` has the command that approves where the draft of the run waits for a person (promote.by_hand).
ASK_WAITING = (
    _BUILD
    + """said=$("${call[@]}" -- "$CALL_SUBJECT")
[[ $said == *'"approve_with"'* ]] || exit 100
echo 'the draft waits for approval'
"""
)


@dataclass(frozen=True)
class Pair:
    """A target and its draft, with what a scheduler needs to know of them. Times of day are in UTC.

    Each field is a key of an entry in the file of pairs; `UNDERSTUDY_<FIELD>` is its default for all of them.
    """

    name: str = ""  # in the ids of the DAGs and assets
    config: str = "/etc/understudy/config.yaml"
    store: str = "/var/lib/understudy"
    bin: str = "understudy"  # the command: searched in the worker's PATH unless absolute
    schedule: str = "0 3 * * 1"  # of retraining; `none`: only after a drift, or by hand
    watch_schedule: str = "*/5 * * * *"
    canary_schedule: str = "30 4 * * *"
    cooldown_hours: float = 72  # after a retraining that an event started
    retry_hours: float = 6  # after an event whose retraining did not get as far as its training
    approval_hours: float = 72
    shards: int = 0  # tasks that generate, and that examine, at once, each a share; 0: `generate` and `evaluate` alone
    queue: str = ""
    pool: str = ""
    pod: str = ""  # a pod template: the command runs in a pod of Kubernetes

    def dag_id(self, kind: str) -> str:
        return f"{kind}.{self.name}" if self.name else kind

    def asset_name(self, kind: str) -> str:
        return f"understudy/{kind}/{self.name or 'default'}"

    @property
    def default_args(self) -> dict[str, Any]:
        where = {key: value for key, value in (("queue", self.queue), ("pool", self.pool)) if value}
        return {"owner": "understudy", **where}

    def held_until(self, started: Iterable[Any], announced: Iterable[Any] = ()) -> datetime | None:
        """Until when no event starts a retraining: a cool-down after the last one that an event started. `started`: the events
        of the asset of starts; `announced`: those of the asset that is to be updated."""
        ends = [
            event.timestamp + timedelta(hours=self.cooldown_hours)
            for event in started
            if event.extra.get("by") == EVENT
        ]
        ends += [event.timestamp + timedelta(hours=self.retry_hours) for event in announced]
        last = max(ends, default=None)
        return last if last is not None and last > datetime.now(UTC) else None


def pairs() -> list[Pair]:
    """The entries of the JSON file that UNDERSTUDY_PAIRS names; without it, one pair from the environment.

    ValueError says what is wrong with the file; Airflow shows it as an import error.
    """
    defaults = {field.name: os.environ.get(f"UNDERSTUDY_{field.name.upper()}", field.default) for field in fields(Pair)}
    path = os.environ.get("UNDERSTUDY_PAIRS")
    if not path:
        return [_pair("the environment", defaults)]
    try:
        with open(path, encoding="utf-8") as file:
            entries = json.load(file)
    except (OSError, ValueError) as error:
        raise ValueError(f"UNDERSTUDY_PAIRS: {path}: {error}") from None
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise ValueError(f"UNDERSTUDY_PAIRS: {path}: not a list of objects")
    found = [_pair(f"{path}, entry {number}", defaults | entry) for number, entry in enumerate(entries, 1)]
    names = [pair.name for pair in found]
    if wrong := [name for name in names if not name or names.count(name) > 1]:
        raise ValueError(f"UNDERSTUDY_PAIRS: {path}: each entry needs a `name` of its own, not {wrong[0]!r}")
    return found


def _pair(where: str, values: Mapping[str, Any]) -> Pair:
    """A pair of checked values: ids of Airflow, absolute paths, and numbers."""
    kinds = {field.name: type(field.default) for field in fields(Pair)}
    if unknown := sorted(set(values) - set(kinds)):
        raise ValueError(f"{where}: unknown key {unknown[0]!r}; known are {', '.join(kinds)}")
    try:
        pair = Pair(**{key: float(value) if kinds[key] is int else str(value) for key, value in values.items()})
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from None
    if not set(pair.name) <= set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-"):
        raise ValueError(f"{where}: name: {pair.name!r} has other characters than letters, digits, '.', '_' and '-'")
    if pair.shards != int(pair.shards) or not 0 <= pair.shards <= 1000:
        raise ValueError(f"{where}: shards: {pair.shards:g} is no number of tasks from 0 to 1000")
    for key in ("config", "store", "pod"):
        if (path := getattr(pair, key)) and not path.startswith("/"):
            raise ValueError(f"{where}: {key}: {path!r} is not an absolute path; a task runs in a temporary directory")
    return pair


def cron(expression: str) -> str | None:
    """A schedule of Airflow; None for `none`."""
    return None if expression.strip().lower() in ("", "none") else expression.strip()


def _literal(context: Any) -> None:
    """Kubernetes replaces `$(NAME)` in a variable of a pod by another variable, such as a token, and reads `$$` as `$`. Done once
    Airflow has rendered the values: a parameter of the DAG may hold one."""
    for one in context["task"].env_vars:
        one.value = one.value.replace("$", "$$")


def command_task(
    pair: Pair,
    task_id: str,
    script: str,
    environment: Mapping[str, str],
    *,
    skips: int | None = None,
    pushes: bool = False,
    light: bool = True,
    shares: int = 0,
    **options: Any,
) -> Any:
    """A task that runs one of the scripts above: on the worker, or with `pair.pod` in a pod of that template.

    Airflow renders `environment` once; the values of parameters are not rendered again. `skips`: the exit code that is a skip.
    `pushes`: the result is the JSON of the script's last line. `light`: in a pod, LIGHT in place of the template's resources.
    `shares`: a mapped task for each share of the shards. Airflow does not render what is mapped: the script.
    """
    scripts = [f"export CALL_SHARDS={number}/{shares}\n{script}" for number in range(1, shares + 1)]
    if not pair.pod:
        from airflow.providers.standard.operators.bash import BashOperator

        processor = {"output_processor": json.loads} if pushes else {}
        given = {
            "task_id": task_id,
            "env": dict(environment),
            "append_env": True,
            "skip_on_exit_code": skips,
            "do_xcom_push": pushes,
            **processor,
            **options,
        }
        if shares:
            return BashOperator.partial(**given).expand(bash_command=scripts)
        return BashOperator(bash_command=script, **given)
    from airflow.providers.cncf.kubernetes.operators.pod import KubernetesPodOperator
    from kubernetes.client import V1ResourceRequirements

    small = V1ResourceRequirements(requests=LIGHT, limits={"memory": LIGHT["memory"]}) if light else None
    given = {
        "task_id": task_id,
        "env_vars": dict(environment),
        "pod_template_file": pair.pod,
        "container_resources": small,
        "base_container_name": "understudy",
        "skip_on_exit_code": skips,
        "do_xcom_push": pushes,
        "on_finish_action": "delete_succeeded_pod",
        "pre_execute": _literal,
        **options,
    }
    if shares:
        return KubernetesPodOperator.partial(**given).expand(cmds=[["bash", "-c", one] for one in scripts])
    return KubernetesPodOperator(cmds=["bash", "-c", script], **given)
