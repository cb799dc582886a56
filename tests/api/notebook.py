# %% [markdown]
# # A notebook on specframe
#
# The cells of a notebook as a script, which editors show as cells; a test runs it. It decodes on
# the toy target, which needs no download: leave `target=toy` out for a real model.

# %% An engine, an answer, and what it took
import specframe
from specframe.api import tasks

engine = specframe.load(["target=toy", "drafter=ngram", "tree=chain", "max_new_tokens=12"])
print(engine)
answer = engine.generate("abcabc", log_probs=True)
print(answer.text, answer.finish_reason, answer.acceptance_length, answer.tokens_per_s)

# %% Each token: the step that emitted it, whether it was drafted, its log-probability
print(answer.table())

# %% Is it faster? A benchmark at two points, as one table
QUICK = ["task.rounds=1", "task.warmup=0", "task.split=false", "task.resamples=100"]
WORDS = ["target=toy", "drafter=ngram", "tree=chain", "max_new_tokens=8", "prompt=abcab"]
points = tasks.sweep([*WORDS, *QUICK, "tree.depth=2,4"])
print(points.rows)

# %% Is it exact?
certificate = tasks.certify([*WORDS, "task.texts=[abcab]", "task.tokens=4", "task.length=2"])
verdict = certificate.numbers["verdict"]
print(verdict)

# %% A page about the runs of the sweep, and its table
page = tasks.report([points.folder], ["task.resamples=100"])
print(page.to_markdown())
