"""Black-box membership inference on one model by the loss of each record.

Yeom, Giacomelli, Fredrikson and Jha (2018), "Privacy Risk in Machine Learning": records a model was trained on
tend to have a smaller loss. On a single model this proves an epsilon only where membership was drawn by fair,
recorded coins; otherwise it describes, and proves nothing.
"""

import numpy as np
from numpy.typing import NDArray


def negative_loss(logits: NDArray[np.float32], labels: NDArray[np.int64]) -> NDArray[np.float64]:
    """Score of each record: log p_y, the negative cross-entropy, higher = member.

    Args:
        logits: Shape (records, classes).
        labels: Shape (records,).
    """
    values = logits.astype(np.float64)
    values -= values.max(axis=1, keepdims=True)
    picked = values[np.arange(len(labels)), labels]
    return np.asarray(picked - np.log(np.exp(values).sum(axis=1)))


def tailored_auc(auc: float) -> float:
    """max(AUC, 1/2): an attack worse than guessing counts as guessing (Wei et al. 2023, "DPMLBench").

    >>> tailored_auc(0.44)
    0.5
    """
    return max(auc, 0.5)
