"""What an adversary does: z_sent → x_hat, with what its threat model grants and nothing else."""

from splitveil.attacks.averaging import Averaged
from splitveil.attacks.base import Attack, Course, Health, Inverter, Need, Watch
from splitveil.attacks.decoder import DecoderAttack, Objective, Told
from splitveil.attacks.diffusion import DiffusionAttack
from splitveil.attacks.family import Family
from splitveil.attacks.generator import GeneratorAttack
from splitveil.attacks.inference import Guesser, Inference, Probe
from splitveil.attacks.knowledge import Knowledge, grant
from splitveil.attacks.optimization import OptimizationAttack
from splitveil.attacks.oracle import CallableOracle, ClientOracle, Oracle, oracle_of
from splitveil.attacks.pairs import ChangedPairs, Pairs, PairSource, QueriedPairs, RecordedPairs, Seen
from splitveil.attacks.recognition import Gallery, Recognition, Recognizer, chance_of_finding
from splitveil.attacks.retrieval import Retrieval
from splitveil.attacks.ridge import Ridge
from splitveil.attacks.shadow import ShadowAttack
from splitveil.attacks.threat import Box, Threat
from splitveil.networks.decoders import Rung

__all__ = [
    "Attack",
    "Averaged",
    "Box",
    "CallableOracle",
    "ChangedPairs",
    "ClientOracle",
    "Course",
    "DecoderAttack",
    "DiffusionAttack",
    "Family",
    "Gallery",
    "GeneratorAttack",
    "Guesser",
    "Health",
    "Inference",
    "Inverter",
    "Knowledge",
    "Need",
    "Objective",
    "OptimizationAttack",
    "Oracle",
    "PairSource",
    "Pairs",
    "Probe",
    "QueriedPairs",
    "Recognition",
    "Recognizer",
    "RecordedPairs",
    "Retrieval",
    "Ridge",
    "Rung",
    "Seen",
    "ShadowAttack",
    "Threat",
    "Told",
    "Watch",
    "chance_of_finding",
    "grant",
    "oracle_of",
]
