"""What a trained model can do: lm-evaluation-harness, validation loss, Hugging Face folders.

Reads run directories and never trains. What is evaluated is a `subject`; `scoring` alone calls the
model; `harness` alone knows lm_eval.
"""
