"""One field of a model that returns several: Hugging Face's classifiers answer with an object that has `.logits`.

cut(Returning(AutoModelForImageClassification.from_pretrained(…), "logits"), after="model.vit.layers.2")
"""

from typing import Any, final

from torch import nn


@final
class Returning(nn.Module):
    """The model, answering with one field of its answer: an attribute, or a key of a dict."""

    def __init__(self, model: nn.Module, field: str) -> None:
        super().__init__()
        self.model = model
        self.field = field

    def forward(self, x: Any) -> Any:  # Any: when the model is cut, torch.fx calls this with a symbol
        answer = self.model(x)
        return answer[self.field] if isinstance(answer, dict) else getattr(answer, self.field)
