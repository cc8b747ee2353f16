"""Several ranks train one model: what crosses between them, known before the first step."""
