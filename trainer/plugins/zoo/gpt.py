"""A small GPT: a decoder-only transformer with the parameter names of GPT-2.

Source: Radford et al., "Language Models are Unsupervised Multitask Learners", section 2.3; names as
in the published weights, whose `Conv1D` matrices are the transposes of these.
"""

import math

import torch
from torch import nn
from torch.nn.functional import scaled_dot_product_attention

from ...errors import UserError

INIT_STD = 0.02


class Attention(nn.Module):
    """Causal self-attention with several heads, [n, T, C] to [n, T, C]."""

    def __init__(self, width: int, num_heads: int, dropout: float, bias: bool) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.p = dropout
        self.c_attn = nn.Linear(width, 3 * width, bias=bias)
        self.c_proj = nn.Linear(width, width, bias=bias)
        self.resid_dropout = nn.Dropout(dropout)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        n, length, width = x.shape
        heads = self.c_attn(x).view(n, length, 3, self.num_heads, width // self.num_heads)
        query, key, value = heads.permute(2, 0, 3, 1, 4)
        p = self.p if self.training else 0.0
        y = scaled_dot_product_attention(query, key, value, dropout_p=p, is_causal=True)
        y = y.transpose(1, 2).reshape(n, length, width)
        out: torch.Tensor = self.resid_dropout(self.c_proj(y))
        return out


class FeedForward(nn.Sequential):
    """Two linear layers around a GELU, [n, T, C] to [n, T, C]."""

    def __init__(self, width: int, dropout: float, bias: bool) -> None:
        super().__init__()
        self.c_fc = nn.Linear(width, 4 * width, bias=bias)
        self.gelu = nn.GELU("tanh")
        self.c_proj = nn.Linear(4 * width, width, bias=bias)
        self.dropout = nn.Dropout(dropout)


class Block(nn.Module):
    """Attention and feed-forward, each behind a norm and beside a shortcut."""

    def __init__(self, width: int, num_heads: int, dropout: float, bias: bool) -> None:
        super().__init__()
        self.ln_1 = nn.LayerNorm(width, bias=bias)
        self.attn = Attention(width, num_heads, dropout, bias)
        self.ln_2 = nn.LayerNorm(width, bias=bias)
        self.mlp = FeedForward(width, dropout, bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attn(self.ln_1(x))
        out: torch.Tensor = x + self.mlp(self.ln_2(x))
        return out


class GPT(nn.Module):
    """Tokens int64 [n, T] to logits [n, T, vocab_size]; T is at most block_size.

    The output layer has the weights of the token embedding.
    """

    def __init__(
        self,
        vocab_size: int,
        block_size: int,
        n_layer: int = 4,
        n_head: int = 4,
        n_embd: int = 128,
        dropout: float = 0.0,
        bias: bool = True,
    ) -> None:
        super().__init__()
        self.block_size = block_size
        self.transformer = nn.ModuleDict(
            {
                "wte": nn.Embedding(vocab_size, n_embd),
                "wpe": nn.Embedding(block_size, n_embd),
                "drop": nn.Dropout(dropout),
                "h": nn.Sequential(*(Block(n_embd, n_head, dropout, bias) for _ in range(n_layer))),
                "ln_f": nn.LayerNorm(n_embd, bias=bias),
            }
        )
        self.lm_head = nn.Linear(n_embd, vocab_size, bias=False)
        self.lm_head.weight = self.transformer["wte"].weight  # type: ignore[assignment]
        for name, module in self.transformer.named_modules():
            # The sums along the shortcuts grow with the number of layers.
            is_end = name.endswith("c_proj")
            module.init_std = INIT_STD / math.sqrt(2 * n_layer) if is_end else INIT_STD
            self._init_weights(module)

    def _init_weights(self, module: nn.Module) -> None:
        """Draw the initial weights of one module; the others keep those of torch."""
        if isinstance(module, (nn.Linear, nn.Embedding)):
            nn.init.normal_(module.weight, std=module.init_std)  # type: ignore[arg-type]
            if isinstance(module, nn.Linear) and module.bias is not None:
                nn.init.zeros_(module.bias)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        length = tokens.shape[1]
        if length > self.block_size:
            what = f"train.model gpt has block_size {self.block_size}, but gets {length} tokens"
            raise UserError(what, "make train.model_args.block_size that of the data set")
        positions = torch.arange(length, device=tokens.device)
        wte, wpe, drop, h, ln_f = self.transformer.values()
        logits: torch.Tensor = self.lm_head(ln_f(h(drop(wte(tokens) + wpe(positions)))))
        return logits
