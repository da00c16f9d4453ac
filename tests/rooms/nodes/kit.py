"""What the room keeps in the evidence of an attempt, as JSON values."""


def signs(*nodes, kind="bad_node", is_left_out=True, text="preflight: wrong sums", failure=""):
    """What speaks against nodes."""
    sign = {"kind": kind, "is_left_out": is_left_out, "text": text, "failure": failure}
    return [{"node": node, **sign} for node in nodes]


def kept(*nodes, **sign):
    """The part of the evidence that has these signs."""
    return {"rooms": {"nodes": {"signs": signs(*nodes, **sign)}}}
