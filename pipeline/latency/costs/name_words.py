"""Words of column names that state which columns are looked at when a table lacks a quantity. Pure.

Nothing is read by them: `offers.py` offers what the values (`by_value.py`) confirm.
"""

import re

from pipeline.latency.costs.columns import plain_name

LOOKED_AT = {  # words of names
    "gamma": r"(^|_)(k|gamma|n?_?spec|num_spec|speculat\w*|spec_tokens|draft_?len\w*|draft_tokens|steps|mtp\w*|nextn)(_|$)",
    "requests": r"conc|user|client|batch|(^|_)(bs|b)(_|$)|stream|seqs|flight|running|requests|threads|(^|_)vus?(_|$)"
    r"|(?<!tensor_)(?<!pipeline_)(?<!expert_)(?<!data_)parallel",
    "acceptance": r"accept|acc_?(len|rate)|(^|_)tau(_|$)|omega|alpha|tokens_per_(step|target_call|round)|block_eff",
    "ttft": r"ttft|ttfb|ftl|first_tok|time_to_first|first_latency",
    "tokens": r"(out|output|gen|generated|completion|decode)\w*_(len|tokens|length)|(^|_)osl(_|$)",
    "latency": r"e2e|latency|total_time|elapsed|duration",
    "served_rate": r"(^|_)(rps|qps|req(uest)?s?_(per_|p)?(s|sec|second))(_|$)|req\w*_throughput|throughput_req",
    "each_throughput": r"user|each|per_req|per_stream|per_seq|speed|single",
}
PER_SECOND = re.compile(
    r"tps|tpm|(^|_)t_s(_|$)|toks?_?(per|p)?_?s(_|$)|tokens?.{0,40}_(s|sec|second)(_|$)|throughput|tgs|tok_s|tok(en)?s?_(per_)?min(ute)?s?(_|$)"
)
_PER_MINUTE = re.compile("(tok|tokens|per)_min(ute)?s?(_|$)|tpm")
_THOUSANDS = re.compile("(^|_)k_?(tok|tps)")
_TIME = re.compile(r"time|latency|delay|tpot|itl|per_out")
_DRAFTS = re.compile(
    r"(^|[^a-z])(spec(?![a-z]|.?bench)|draft|eagle|medusa|mtp|n_?-?gram|pard|dflash|speculat)", re.IGNORECASE
)
_NO_DRAFTS = re.compile(
    r"(^|[^a-z])(no|non|none|without|wihtout|off|false|disabled|base|baseline|vanilla|plain)([^a-z]|$)"
    r"|(?<!temp.)(?<!temperature.)(?<!\bt=)(?<![a-z\d.])0(?![a-z\d.])",  # not that of 0.6B
    re.IGNORECASE,
)
_YES = re.compile("on|yes|true|enabled?", re.IGNORECASE)
INPUT = re.compile(
    r"input|prompt|prefill|total_tok(?!.{0,40}output)|(^|_)(in|pp)(?!_(m|u|milli|micro)?s(ec\w*)?(_|$))(_|$)"
)
NO_MEAN = re.compile(
    r"std|(?<!tok_)(?<!tokens_)(?<!per_)min(_|$)|max(_|$)|p(?!50)\d\d|queue|wait|error|fail|hit|goodput|joule|watt|energy|(^|_)slo(_|$)|speed_?up|(^|_)ratio(_|$)"
)
OF_DEVICE = re.compile(r"gpu|device|chip|card|rank|node|accelerator|(^|_)([abhl]\d{2,3}|mi\d{3}\w?|[tnx]pus?)(_|$)")
OF_TOKEN = re.compile("itl|tpot|tok|per_out")
OF_PART = re.compile("sched|network|rtt|draft|cpu|launch|overhead|load|prefill")  # of a step, of its time
OTHERS = {
    "acceptance": r"(^|_)pos",  # at one position
    "gamma": r"speculative_num_draft|accept|tok_s|_ms|top_k|warm|layers",
    "tokens": r"_s(_|$)|per|tps|ms|accept|total|max|spec|draft",
}  # SGLang's `speculative_num_draft_tokens` is the draft length + 1


def is_rate(plain: str) -> bool:
    return bool(PER_SECOND.search(plain)) and not _TIME.search(plain)


def tells_of_drafts(text: str) -> bool:
    """Whether a name or a cell states that there was a draft."""
    return bool(_DRAFTS.search(text)) and not _NO_DRAFTS.search(text)


def tells_by_name(name: str, cell: str) -> bool:
    """The same of a cell that is yes, or names a draft, in a column whose name does."""
    yes = _YES.fullmatch(cell.strip()) or (
        "draft" in name.lower() and re.search("[A-Za-z]", cell) and not _NO_DRAFTS.search(cell)
    )
    return bool(yes) and tells_of_drafts(name)


def per_second(plain: str) -> float:
    """The factor of a rate whose name states minutes or thousands of tokens."""
    return (1 / 60 if _PER_MINUTE.search(plain) else 1.0) * (1000.0 if _THOUSANDS.search(plain) else 1.0)


def is_count_of_tokens(plain: str) -> bool:
    """Whether it counts tokens of a request: input, output or both."""
    tokens = re.search(LOOKED_AT["tokens"], plain) and not re.search(OTHERS["tokens"], plain)
    return bool(tokens or INPUT.search(plain) or (plain.endswith("tokens") and "per" not in plain))


def is_latency(plain: str) -> bool:
    """Whether it is the latency of a request, and not of a token."""
    return bool(re.search(LOOKED_AT["latency"], plain)) and not re.search(
        "tok|tpot|itl|chunk|decod|step|iteration|forward", plain
    )


def of_drafts(name: str) -> bool:
    """Whether a name indicates drafts by itself; `steps` does not."""
    return bool(re.search("spec|draft|mtp|nextn|gamma", plain_name(name)))


def of_requests(name: str) -> str:
    """The quantity of a number of requests: those in the batch, or those that are open."""
    return "running" if re.search("batch|running|(^|_)(bs|b)(_|$)", plain_name(name)) else "concurrency"
