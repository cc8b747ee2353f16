"""Train FuxiCTR's DCN V2 on an export of hotset.

Layers, loader, loop and metrics are FuxiCTR's. Runs as a separate program, because FuxiCTR writes to the
current folder and sets up logging: ``python -m hotset.workflows.bench.fuxictr_training EXPORT SEED``. Prints
the AUC of the test part.
"""

from __future__ import annotations

import os
import sys
import warnings
from typing import Any


def main(folder: str, seed: int) -> None:
    """Train for one epoch on the export in ``folder``."""
    warnings.simplefilter("ignore")
    # Imported only here: FuxiCTR is an extra, and importing this module must not need it.
    import torch
    from fuxictr.features import FeatureMap
    from fuxictr.pytorch.dataloaders import RankDataLoader
    from fuxictr.pytorch.layers import CrossNetV2, FeatureEmbedding, MLP_Block
    from fuxictr.pytorch.models import BaseModel
    from fuxictr.pytorch.torch_utils import seed_everything

    embedding_dim = 16

    class DcnV2(BaseModel):  # type: ignore[misc]
        """Cross network and deep network in parallel, as in FuxiCTR's model of this name."""

        def __init__(self, features: Any) -> None:
            super().__init__(features, model_root="models", metrics=["AUC", "logloss"], verbose=0)
            self.embedding = FeatureEmbedding(features, embedding_dim)
            width = features.sum_emb_out_dim()
            self.cross = CrossNetV2(width, 3)
            self.deep = MLP_Block(width, hidden_units=[512, 256])
            self.last = torch.nn.Linear(width + 256, 1)
            self.compile("adam", "binary_crossentropy", 0.001)
            self.reset_parameters()
            self.model_to_device()

        def forward(self, inputs: Any) -> dict[str, torch.Tensor]:
            found = self.embedding(self.get_inputs(inputs), flatten_emb=True)
            joined = torch.cat([self.cross(found), self.deep(found)], dim=-1)
            return {"y_pred": self.output_activation(self.last(joined))}

    seed_everything(seed)
    features = FeatureMap(os.path.basename(folder), folder)
    features.load(f"{folder}/feature_map.json", {"embedding_dim": embedding_dim})
    paths = {f"{split}_data": f"{folder}/{split}.parquet" for split in ("train", "valid", "test")}
    train, valid, test = RankDataLoader(
        features, stage="both", batch_size=512, shuffle=True, data_format="parquet", **paths
    )
    os.makedirs(f"models/{features.dataset_id}", exist_ok=True)
    model = DcnV2(features)
    model.fit(train, validation_data=valid, epochs=1)
    print("AUC", model.evaluate(test)["AUC"])


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
