"""Networks that read sentences as token ids: a bag of embeddings and a small transformer encoder, trained by Opacus.

A record is a row of ids, float32 and exact below 2^24, 0 where the sentence has ended. The vocabulary is the network's,
not the data's: id i > 0 is row 1 + (i - 1) mod (vocabulary - 1) of its table of embeddings (the hashing trick), so that
nothing about the words of the training records is read off them outside the private training.
"""

import math

import torch
from torch import Tensor, nn

VOCABULARY = 1024  # rows of the table of embeddings, padding included, where nothing else is said
WIDTH = 8  # of an embedding of "bag-of-embeddings" where nothing else is said
LARGEST_ID = 2**24 - 1  # float32 holds it exactly
NOWHERE = -1e9  # attention's score of padding: finite, so that a sentence without a word is no NaN


class Vocabulary(nn.Module):
    """A table of embeddings that any id has a row in.

    Args:
        rows: Its rows, at least 2: padding, and words.
        width: Of an embedding.
    """

    def __init__(self, rows: int, width: int) -> None:
        super().__init__()
        if rows < 2 or width < 1:
            raise ValueError(f"Expected vocabulary={rows!r} >= 2 and width={width!r} >= 1.")
        self.rows = rows
        self.embeddings = nn.Embedding(rows, width)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Embeddings, shape (records, length, width), and which of them are words, bool, shape (records, length)."""
        ids = x.long()
        words = ids > 0
        return self.embeddings(torch.where(words, (ids - 1) % (self.rows - 1) + 1, 0)), words


def mean_of_words(values: Tensor, words: Tensor) -> Tensor:
    """The mean over the words of each sentence, shape (records, width); 0 for a sentence without any.

    Args:
        values: Shape (records, length, width).
        words: Which of them are no padding, bool, shape (records, length).
    """
    shares = words / words.sum(1, keepdim=True).clamp_min(1)
    return (shares.unsqueeze(2) * values).sum(1)


class BagOfEmbeddings(nn.Module):
    """Softmax regression on the mean embedding of a sentence's words (Joulin et al. 2017, fastText, without n-grams).

    As there it has no bias, which every record would pull at, more than at the embeddings of its own words.

    Args:
        inputs: Ids of one sentence.
        classes: Outputs.
        vocabulary: Rows of the table of embeddings.
        width: Of an embedding.
    """

    largest_id = LARGEST_ID

    def __init__(self, inputs: int, classes: int, *, vocabulary: int = VOCABULARY, width: int = WIDTH) -> None:
        super().__init__()
        self.vocabulary = Vocabulary(vocabulary, width)
        self.classifier = nn.Linear(width, classes, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Logits, shape (records, classes)."""
        logits: Tensor = self.classifier(mean_of_words(*self.vocabulary(x)))
        return logits


class AttentionBlock(nn.Module):
    """One layer of a transformer encoder, normalised first: attention among the words, then a ReLU layer for each.

    Its projections are linear layers of their own: Opacus has no per-record gradient for torch's MultiheadAttention.

    Args:
        width: Of a word's representation, a multiple of `heads`.
        heads: Attention heads.
    """

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before, self.after = nn.LayerNorm(width), nn.LayerNorm(width)
        self.query, self.key, self.value, self.out = (nn.Linear(width, width) for _ in range(4))
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, values: Tensor, words: Tensor) -> Tensor:
        """Shape (records, length, width) to the same; `words` says which are no padding."""
        normal = self.before(values)
        query, key, value = (
            part(normal).unflatten(2, (self.heads, -1)).transpose(1, 2) for part in (self.query, self.key, self.value)
        )
        scores = (query @ key.mT / math.sqrt(query.shape[-1])).masked_fill(~words[:, None, None, :], NOWHERE)
        values = values + self.out((scores.softmax(-1) @ value).transpose(1, 2).flatten(2))
        changed: Tensor = values + self.down(self.up(self.after(values)).relu())
        return changed


class TransformerEncoder(nn.Module):
    """Softmax regression on the mean of what a transformer encoder makes of a sentence's words (Vaswani et al. 2017).

    Args:
        inputs: Ids of one sentence.
        classes: Outputs.
        vocabulary: Rows of the table of embeddings.
        width: Of a word's representation, a multiple of `heads`.
        heads: Attention heads of each layer.
        layers: Layers.
    """

    largest_id = LARGEST_ID

    def __init__(
        self,
        inputs: int,
        classes: int,
        *,
        vocabulary: int = VOCABULARY,
        width: int = 16,
        heads: int = 2,
        layers: int = 1,
    ) -> None:
        super().__init__()
        if heads < 1 or width % heads or layers < 1:
            raise ValueError(
                f"Expected width={width!r} to be a multiple of heads={heads!r}, and layers={layers!r} >= 1."
            )
        self.vocabulary = Vocabulary(vocabulary, width)
        self.positions = nn.Embedding(inputs, width)
        self.blocks = nn.ModuleList(AttentionBlock(width, heads) for _ in range(layers))
        self.classifier = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Logits, shape (records, classes)."""
        values, words = self.vocabulary(x)
        # positions of every record apart: Opacus finds the gradient of a record along the first axis
        values = values + self.positions(torch.arange(x.shape[1], device=x.device).expand(x.shape))
        for block in self.blocks:
            values = block(values, words)
        logits: Tensor = self.classifier(mean_of_words(values, words))
        return logits
