"""What the plugin keeps in the evidence of an attempt, as JSON values."""


def reasons(*nodes, kind="bad_node", is_left_out=True, text="preflight: wrong sums", failure=""):
    """What speaks against nodes."""
    reason = {"kind": kind, "is_left_out": is_left_out, "text": text, "failure": failure}
    return [{"node": node, **reason} for node in nodes]


def kept(*nodes, **reason):
    """The part of the evidence that has these reasons."""
    return {"plugins": {"nodes": {"reasons": reasons(*nodes, **reason)}}}
