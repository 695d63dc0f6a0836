"""The text of the pages of results: the findings and the protocol, with numbers from the results."""

import textwrap
from collections.abc import Callable, Mapping
from statistics import fmean, stdev

import hyperparameter_space as space
from hyperparameter_search import MARGIN
from methods import DATASETS, METHODS, RECIPE_ROWS
from results_data import Results, mean_recalls, recalls, rows


def findings(datasets: tuple[str, ...], results: Results) -> str:
    """Return the opening of the page: what to use. It needs the methods that it names, on all datasets."""
    opening = """The methods of [five papers](glossary.md#papers) under one protocol, beside the numbers that they
        print. All values are per cent; ± is the standard deviation over seeds. `make results` writes this page from
        `benchmarks/results`."""
    names = """Methods have the names of their papers: RAW is `--loss raw`, RAW+VTHM is `multi_similarity`, RLL is
        `ranked_list` (on the level H of the network, or on L, M and H), NL is `npair_all`, AL is `angular` and NL&AL is
        `npair_angular`. VTHM, SemiHard and DW are the mining rules `valid_triplet`, `semi_hard` and
        `distance_weighted`. [Losses](losses.md#all-losses) has the equations."""
    lines = ["# Results", "", paragraph(opening), "", paragraph(names), ""]
    means = {dataset: mean_recalls(dataset, results) for dataset in datasets}
    named = {"proxy_anchor", "best", "vit", "raw_vthm", "raw", "rll_lmh", "rll_h", "vthm", "margin", "hdc"}
    if any(named - set(found) for found in means.values()):
        return "\n".join(lines)

    def values(method: str) -> str:
        return " and ".join(f"{100 * means[dataset][method]:.1f}" for dataset in datasets)

    highest = "; ".join(f"{_three_best(found)} on {DATASETS[dataset].title}" for dataset, found in means.items())
    measured = [run["metrics"] for run in results.values() if run["kind"] in ("row", *RECIPE_ROWS) and "metrics" in run]
    flips = [100 * (metrics["flip_test"]["recall_at_1"] - metrics["recall_at_1"]) for metrics in measured]
    seeds = [recalls(rows(dataset, method, results)) for dataset in datasets for method in METHODS]
    deviations = [100 * stdev(found) for found in seeds if len(found) > 1]
    lrs = [results[f"chosen_{dataset}"]["shared"]["lr"] for dataset in ("cub200", "cars196")]
    first, tuned = (100 * results[f"trial_cub200_raw_vthm_{n}"]["metrics"]["recall_at_1"] for n in (1, 4))
    items = [
        f"""**Start with Proxy-Anchor** (`--loss proxy_anchor`): {values("proxy_anchor")} under the common protocol,
        {values("best")} in the best recipe (`--recipe best_resnet50`). The three highest rows are {highest}.""",
        """**Give a ResNet-50 more pixels**: the best recipes crop 288 pixels in training and 384 at the test. On
        CUB-200-2011 a head of 2,048 dimensions in place of 512 gained 1.9 points; on Cars196 two levels of the network
        (`--levels MH`) gained 2.9 on validation classes.""",
        f"""**Start from a vision transformer if your device allows** (`--recipe best_vit`): a ViT-S/14 of the DINOv2
        family reaches {values("vit")}, with 336 pixels. Its pretraining set was gathered with training images of both
        datasets as seeds, so part of its lead may come from there. Low-rank additions to frozen weights (`--lora 16`)
        are as good as training all weights on CUB-200-2011; on Cars196 they were worse on validation classes.""",
        *_frozen(results),
        *_transfer(results, means),
        *_reranked(results),
        f"""**Without class proxies**, use RAW+VTHM (`--loss multi_similarity`, {values("raw_vthm")}) or RAW
        (`--loss raw`, {values("raw")}). Ranked list on three levels of the network
        (`--loss ranked_list --levels LMH`, {values("rll_lmh")}) is a little better, with 1,536 dimensions; on one level
        it reaches {values("rll_h")}.""",
        f"""**Do not use** VTHM with equal weights ({values("vthm")}): it sums over many more negatives than positives
        ([why](results_details.md#why-some-rows-are-below-their-papers)). HDC ({values("hdc")}) with its authors'
        weights has the same fault. Use margin loss ({values("margin")}) with
        `--loss-options mining=semi_hard`, and ABE-8 with a `weight` that makes its divergence a mean.""",
        f"""**`--flip-test true`** embeds each image and its mirror image: {fmean(flips):.1f} points on average over all
        rows, less in good ones, for twice the work at test time.""",
        f"""**Tune the learning rate and the number of steps on your data.** A lower learning rate alone took RAW+VTHM
        from {first:.1f} to {tuned:.1f} on the validation classes of CUB-200-2011. The search chose lr {lrs[0]:g} there,
        and {lrs[1]:g} with three times the steps on Cars196.""",
        f"""**Seeds** differ by a standard deviation of {fmean(deviations):.1f} on average and {max(deviations):.1f} at
        most. Ignore smaller differences.""",
        """**Keep the papers' hyper-parameters of a loss**: they are within about one point of the best value that was
        tried ([details](results_details.md#options-that-the-papers-vary)). Most losses are robust around them; NRA on
        Cars196 is not.""",
    ]
    titles = " and ".join(DATASETS[dataset].title for dataset in datasets)
    lines += ["## What to use", "", f"Recall@1 is given for {titles}, in this order.", "", *map(item, items)]
    return "\n".join(lines)


def _frozen(results: Results) -> list[str]:
    """Return what a head on frozen features gains, if it was measured."""
    measured = results.get("frozen_features", {"rows": []})["rows"]
    gains = [100 * (fmean(each["recall_at_1"] for each in row["trained"]) - row["frozen"]) for row in measured]
    if not gains:
        return []
    seconds = max(row["training_seconds"] for row in measured)
    text = f"""**A head on frozen features** ([details](results_details.md#a-head-on-frozen-features)) trains in
        {seconds:.0f} seconds or less and gains {min(gains):.0f} to {max(gains):.0f} points. Fine-tuning gains far more:
        use the head to try ideas, or where the network must stay as it is."""
    return [text]


def _transfer(results: Results, means: Mapping[str, Mapping[str, float]]) -> list[str]:
    """Return what a recipe reaches on data that it was not chosen on, if it was measured."""
    cars, omniglot = (results.get(f"transfer_{dataset}_best_cub200") for dataset in ("cars196", "omniglot"))
    if not cars or not omniglot:
        return []
    text = f"""**Choose a recipe on data like yours**: the ResNet-50 recipe that was chosen on CUB-200-2011 reaches
        {100 * cars["metrics"]["recall_at_1"]:.1f} on Cars196, where the recipe that was chosen there reaches
        {100 * means["cars196"]["best"]:.1f}. On Omniglot, handwritten characters, it takes
        {100 * omniglot["metrics"]["start"]["recall_at_1"]:.1f} before training to
        {100 * omniglot["metrics"]["recall_at_1"]:.1f} ([details](results_details.md#recipes-on-other-data))."""
    return [text]


def _reranked(results: Results) -> list[str]:
    """Return what re-ranking gains, if it was measured."""
    found = [run["metrics"] for run in results.values() if "reranked" in run.get("metrics", {})]
    if not found:
        return []
    recall, precision = (
        [100 * (metrics["reranked"][key] - metrics[key]) for metrics in found] for key in ("recall_at_1", "map_at_r")
    )
    text = f"""**Re-rank where whole lists count** (`tuplet evaluate --rerank`): MAP@R of the best recipes gains
        {min(precision):.0f} to {max(precision):.0f} points, Recall@1 {fmean(recall):.1f} on average
        ([details](results_details.md#re-ranking))."""
    return [text]


def _three_best(means: dict[str, float]) -> str:
    best = sorted((method for method in means if method in METHODS), key=means.__getitem__, reverse=True)[:3]
    return ", ".join(METHODS[method].title for method in best)


def protocol(results: Results) -> str:
    """Return the description of the protocol."""
    count = sum(result["kind"] == "trial" for result in results.values())
    items = [
        """**Network**: ResNet-50 v1 with ImageNet weights, 512 dimensions (512 for each of L, M and H in the
        multilevel row). The papers used GoogLeNet or BN-Inception, so their numbers tell where a method stood, not
        which network is better.""",
        """**Training**: AdamW, cosine schedule, the same number of batches of 120 images for all methods. Batches are
        built as in the method's paper: 60 classes × 2, 40 triplets, C × K with K = 5 (RAW, VTHM), 3 (ranked list) or 8
        (NRA). Losses have their papers' hyper-parameters. The first half of the classes trains, the second half
        tests.""",
        """**Systems** that the papers compare with (from PDDM+Quadruplet on) have their own samplers and heads, in 512
        dimensions unless their heads differ (HDC 3 × 128, ABE-8 8 × 64). Spectral Clust has batches of 1,260 and sees
        the same number of images; ABE-8 has a third of the steps. Each has a learning rate of its own, chosen in short
        runs with one seed on CUB-200-2011; on Cars196 it has the same multiple of the shared learning rate. All other
        options are shared.""",
        """**Test**: one centre crop of 224², once, after the last step. *Flip test* averages the vectors of an image
        and of its mirror image; no paper does that, so it has a column of its own. *Printed* is Recall@1 in the papers'
        tables, of their own networks, in 512 dimensions unless it says so; `tuplet.training.published` names the paper
        and the network of each number.""",
        """**Images** were read from copies that had been resized to 256 × 256 (WebP); their original width and height
        are known, and crops have the true proportions. The papers had the originals, most of them 500 pixels wide in
        CUB-200-2011 and half of them 640 or more in Cars196; where the best recipe has more pixels than 256, they are
        interpolated. CUB-200-2011 is complete (5,864 train, 5,924 test); of Cars196 15 images are missing (8,048 of
        8,054 train, 8,122 of 8,131 test).""",
        f"""**Search**: learning rate, steps and augmentation are chosen on the middle third of the *training* classes,
        in trials of {DATASETS["cub200"].trial_steps} steps (a row of a table has {space.STEPS_FACTOR:g} times the
        steps and classes). One option is tried after another; a value is taken if it raises Recall@1 by
        {100 * MARGIN:g} points or, if that is a tie, MAP@R. RAW+VTHM chooses for all methods, then one method of each
        family for its family. The {count} trials are in [trials.csv](../benchmarks/results/trials.csv), each with its
        command. For the transformer, {len(space.VIT["cub200"].alternatives) + 1} candidates on CUB-200-2011 and
        {len(space.VIT["cars196"].alternatives) + 1} on Cars196 were compared with one seed.""",
        """**Not blind to the test classes**: four decisions about the search (which classes validate, which values are
        tried, how often, and which methods choose for themselves) were made when test scores were known.
        `benchmarks/hyperparameter_space.py` lists them. No learning rate, number of steps or augmentation was chosen by
        test scores.""",
    ]
    opening = """How the numbers of [Results](results.md) were measured, all of their metrics, and what else was
        measured. All values are per cent; ± is the standard deviation over seeds."""
    head = ["# Results in detail", "", paragraph(opening), "", "## The protocol", ""]
    return "\n".join([*head, *map(item, items)])


def causes(recall: Callable[..., str]) -> str:
    """Return what the runs of `ablations.CAUSES` tell.

    Args:
        recall: gives Recall@1 of a cause and a value, on the first dataset of the cause or on another one.
    """
    start, steps, pixels = "as in the table", "eight times the steps", "384 pixels"
    network = [
        f"{recall(name, start)} becomes {recall(name, steps)} with eight times the steps, {recall(name, pixels)} with "
        f"384 pixels, {recall(name, 'EfficientNet-Lite0')} with an EfficientNet-Lite0 and "
        f"{recall(name, 'ViT-S/14')} with a ViT-S/14"
        for name in ("raw_vthm_limit", "nra_limit")
    ]
    items = [
        f"""**RAW+VTHM and NRA on CUB-200-2011: the network and its pixels, more than the budget.** RAW+VTHM:
        {network[0]}, all other options unchanged. NRA: {network[1]}. The weights of the papers' networks were not at
        hand.""",
        f"""**VTHM alone: sums.** Equal weights are summed over the kept negatives, of which there are many more than
        positives. With means in place of the sums, {recall("vthm_reduction", start)} becomes
        {recall("vthm_reduction", "means over kept pairs")} on CUB-200-2011, and
        {recall("vthm_reduction", start, "cars196")} becomes
        {recall("vthm_reduction", "means over kept pairs", "cars196")} on Cars196.""",
        f"""**Binomial+VTHM on CUB-200-2011: the balance of its terms.** The slopes α = 2 and β = 50 give a hard
        negative up to 25 times the weight of a positive. Without mining, the mean over mostly easy negatives hides
        that; among mined ones all are hard. With α = β = 10 in place of the paper's values,
        {recall("binomial_vthm_balance", start)} becomes {recall("binomial_vthm_balance", "α = β = 10")}.""",
        f"""**HDC on Cars196: the weight of its negatives.** Its authors' code weighs a negative pair ten times, and a
        batch of 12 classes × 10 has 12 times as many negative pairs as positive ones. With a weight of 1,
        {recall("hdc_limit", start)} becomes {recall("hdc_limit", "negatives weighted as positives")}. The hidden layers
        of its heads are not the cause, though they start from random numbers here and from the auxiliary classifiers of
        the network in its authors' code: without them it is {recall("hdc_limit", "no hidden layers")}.""",
        f"""**HTL on Cars196: its margins.** {recall("htl_limit", start)} becomes
        {recall("htl_limit", "one margin of 0.2")} with the same batches and the triplet loss with its one margin of
        0.2. Its batches bring nothing here: with that loss and random classes it is
        {recall("htl_limit", "one margin of 0.2, random classes")}. Five times the learning rate gives
        {recall("htl_limit", "five times the lr")}.""",
        f"""**Margin on Cars196: distance-weighted mining.** With semi-hard pairs, {recall("margin_limit", start)}
        becomes {recall("margin_limit", "semi-hard")}. A learned β ({recall("margin_limit", "β learned")}) and a head
        that learns as slowly as the network ({recall("margin_limit", "head at 1 × lr")}) are no better, and some mining
        is needed: with all pairs it is {recall("margin_limit", "all pairs")}. That the paper has 128 dimensions
        does not explain it: with an EfficientNet-Lite0 and 64 pixels, which a CPU trains in 300 steps,
        {recall("margin_small", "512 dimensions")} becomes {recall("margin_small", "128 dimensions")} with 128
        dimensions and {recall("margin_small", "512 dimensions, semi-hard")} with semi-hard pairs.""",
        f"""**ABE-8 on Cars196: its divergence is a sum** over images and pairs of learners, beside contrastive losses
        that are means over pairs. With a mean, {recall("abe_limit", start)} becomes
        {recall("abe_limit", "a mean of divergences")}. A tenth of the learning rate
        ({recall("abe_limit", "a tenth of the lr")}) and batches with more positive pairs
        ({recall("abe_limit", "4 classes × 16")}; {recall("abe_limit", "4 classes × 16, a mean over the images")} with a
        mean over the images) help less.""",
        f"""**PDDM on Cars196: one quadruplet a batch.** The same images in five times as many batches of 24 take
        {recall("pddm_limit", start)} to {recall("pddm_limit", "batches of 24, five times the steps")}. Five times the
        learning rate destroys the network ({recall("pddm_limit", "five times the lr")}).""",
    ]
    opening = """Recall@1 of runs with one seed and half the steps of the tables, each with one change. "As in the
        table" has no change."""
    head = ["## Why some rows are below their papers", "", paragraph(opening), ""]
    return "\n".join([*head, *map(item, items), ""])


def paragraph(text: str, indent: str = "") -> str:
    """Break text into lines of the page's width."""
    text = " ".join(text.split())
    return textwrap.fill(text, 118, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


def item(text: str) -> str:
    """Return an item of a list, broken into lines."""
    return paragraph(f"- {text}", indent="  ")
