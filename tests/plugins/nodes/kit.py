"""What the plugin keeps in the evidence of an attempt, as JSON values."""


def kept(*nodes, kind="bad_node", is_left_out=True, failure=""):
    """The part of the evidence that has a reason against each of these nodes."""
    reason = {"kind": kind, "is_left_out": is_left_out, "failure": failure}
    reasons = [{"node": node, "text": "preflight: wrong sums", **reason} for node in nodes]
    return {"plugins": {"nodes": {"reasons": reasons}}}
