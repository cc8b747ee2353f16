# Write this folder, with the hotset of commit 22a087e: sh make.sh
set -e
python - <<'END'
import random

draw = random.Random(28)
for day in range(2):
    lines = ["click,age,site,item,tags"]
    for _ in range(240):
        tags = "|".join(f"t{int(draw.paretovariate(0.8))}" for _ in range(draw.randint(1, 3)))
        site, item = int(draw.paretovariate(1.0)) % 60, int(draw.paretovariate(0.7)) % 150
        lines.append(f"{int(draw.random() < 0.3)},{draw.randint(0, 90)},s{site},{item},{tags}")
    open(f"day{day}.csv", "w").write("\n".join([*lines, ""]))
END
cat > log.toml <<'END'
format = "csv"
label = "click"
dense = ["age"]
[sparse]
site = "text"
item = "integer"
tags = { kind = "text", list = true }
END
export COLUMNS=80
small="--bottom-mlp 4 --top-mlp 4 --threads 1 --epochs 2 --staging-bytes 2KiB"
hotset preprocess day0.csv --schema log.toml --out data --embedding-dim 4 --hot-bytes 1KiB --batch-size 16 --workers 1 --transpose
hotset schedule data --epochs 2 --staging-bytes 2KiB --workers 1
hotset schedule data --ranks 2 --workers 1
hotset train data --out run $small
hotset export run --out exported
python - $small <<'END'
import sys

import hotset.train.rows.embeddings as embeddings
from hotset.train.rows import changed_rows
from hotset.workflows.cli import main

updates = 0
update = embeddings.Embeddings.update


def killed(self, *arguments):
    global updates
    updates += 1
    if updates == 20:
        import os, time

        time.sleep(0.5)
        os._exit(9)
    return update(self, *arguments)


embeddings.Embeddings.update = killed
main(["train", "data", "--out", "unfinished", "--checkpoint-every", "6", *sys.argv[1:]])
END
