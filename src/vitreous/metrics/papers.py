"""The papers behind the metrics, as data; some are known from the methods."""

from __future__ import annotations

from vitreous.methods import Paper
from vitreous.methods.papers import PAPERS as METHOD_PAPERS

__all__ = ["PAPERS"]

_ALL = (
    Paper(
        "petsiuk2018rise",
        "Petsiuk, Vitali and Das, Abir and Saenko, Kate",
        "RISE: Randomized Input Sampling for Explanation of Black-box Models",
        "BMVC",
        2018,
    ),
    Paper(
        "hong2025coiba",
        "Hong, Jung-Ho and Kim, Ho-Joong and Jeon, Kyu-Sung and Lee, Seong-Whan",
        "Comprehensive Information Bottleneck for Unveiling Universal Attribution to Interpret Vision Transformers",
        "CVPR",
        2025,
    ),
    Paper(
        "englebert2023tis",
        "Englebert, Alexandre and Stassin, Sédrick and Nanfack, Géraldin and Mahmoudi, Sidi Ahmed"
        " and Siebert, Xavier and Cornu, Olivier and De Vleeschouwer, Christophe",
        "Explaining through Transformer Input Sampling",
        "ICCV Workshops",
        2023,
    ),
    Paper(
        "wu2024token",
        "Wu, Junyi and Duan, Bin and Kang, Weitai and Tang, Hao and Yan, Yan",
        "Token Transformation Matters: Towards Faithful Post-hoc Explanation for Vision Transformer",
        "CVPR",
        2024,
    ),
    Paper(
        "samek2017evaluating",
        "Samek, Wojciech and Binder, Alexander and Montavon, Grégoire and Lapuschkin, Sebastian"
        ' and M{\\"u}ller, Klaus-Robert',
        "Evaluating the Visualization of What a Deep Neural Network Has Learned",
        "IEEE TNNLS",
        2017,
    ),
    Paper(
        "bluecher2024decoupling",
        'Bl{\\"u}cher, Stefan and Vielhaben, Johanna and Strodthoff, Nils',
        "Decoupling Pixel Flipping and Occlusion Strategy for Consistent XAI Benchmarks",
        "TMLR",
        2024,
    ),
    Paper(
        "li2023m4",
        "Li, Xuhong and Du, Mengnan and Chen, Jiamin and Chai, Yekun and Lakkaraju, Himabindu and Xiong, Haoyi",
        "M4: A Unified XAI Benchmark for Faithfulness Evaluation of Feature Attribution Methods across Metrics,"
        " Modalities and Models",
        "NeurIPS Datasets and Benchmarks",
        2023,
    ),
    Paper(
        "zhang2024opticam",
        "Zhang, Hanwei and Torres, Felipe and Sicre, Ronan and Avrithis, Yannis and Ayache, Stephane",
        "Opti-CAM: Optimizing Saliency Maps for Interpretability",
        "CVIU",
        2024,
    ),
)
PAPERS: dict[str, Paper] = METHOD_PAPERS | {paper.key: paper for paper in _ALL}
