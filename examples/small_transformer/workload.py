"""A small GPT-like language model in plain torch, as Srifty profiles it."""

import torch
from torch import nn
from torch.nn import functional

VOCABULARY = 2048
CONTEXT = 32
WIDTH = 256
LAYERS = 6
HEADS = 4


class Block(nn.Module):
    """Attention to what came before, then a small network for each position."""

    def __init__(self):
        super().__init__()
        self.before_attention = nn.LayerNorm(WIDTH)
        self.to_query_key_value = nn.Linear(WIDTH, 3 * WIDTH)
        self.from_heads = nn.Linear(WIDTH, WIDTH)
        self.network = nn.Sequential(
            nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)
        )

    def forward(self, x):
        batch, length, width = x.shape
        heads = self.to_query_key_value(self.before_attention(x))
        query, key, value = heads.view(batch, length, 3, HEADS, width // HEADS).permute(2, 0, 3, 1, 4)
        seen = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.from_heads(seen.transpose(1, 2).reshape(batch, length, width))
        return x + self.network(x)


class SmallTransformer(nn.Module):
    """Token and position embeddings, blocks, and an output layer tied to the token embedding."""

    def __init__(self):
        super().__init__()
        self.token = nn.Embedding(VOCABULARY, WIDTH)
        self.position = nn.Parameter(torch.zeros(CONTEXT, WIDTH))
        self.blocks = nn.Sequential(*(Block() for _ in range(LAYERS)))
        self.last_norm = nn.LayerNorm(WIDTH)
        self.output = nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.output.weight = self.token.weight

    def forward(self, tokens):
        return self.output(self.last_norm(self.blocks(self.token(tokens) + self.position)))


def make_batch(batch):
    """`batch` samples: the tokens, and the token that comes next at each position."""
    tokens = torch.randint(VOCABULARY, (batch, CONTEXT + 1))
    return tokens[:, :-1], tokens[:, 1:]


def loss(model, data):
    tokens, following = data
    return functional.cross_entropy(model(tokens).flatten(0, 1), following.flatten())


def make():
    """What `workload = "workload:make"` in job.toml names."""
    model = SmallTransformer()
    return {
        "model": model,
        "optimizer": torch.optim.AdamW(model.parameters(), lr=3e-4),
        "make_batch": make_batch,
        "loss": loss,
    }
