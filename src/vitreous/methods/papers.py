"""The papers behind the methods, as data: what ``vitreous cite`` prints."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["PAPERS", "Paper"]


@dataclass(frozen=True)
class Paper:
    """A reference."""

    key: str
    authors: str
    title: str
    venue: str
    year: int

    def __str__(self) -> str:
        first = self.authors.split(" and ")[0].split(",")[0]
        others = " et al." if " and " in self.authors else ""
        return f"{first}{others}, {self.venue} {self.year}"

    def bibtex(self) -> str:
        fields = {"author": self.authors, "title": f"{{{self.title}}}", "booktitle": self.venue, "year": self.year}
        body = ",\n".join(f"  {name} = {{{value}}}" for name, value in fields.items())
        return f"@inproceedings{{{self.key},\n{body}\n}}"


_ALL = (
    Paper(
        "abnar2020quantifying",
        "Abnar, Samira and Zuidema, Willem",
        "Quantifying Attention Flow in Transformers",
        "ACL",
        2020,
    ),
    Paper(
        "barkan2021gradsam",
        "Barkan, Oren and Hauon, Edan and Caciularu, Avi and Katz, Ori and Malkiel, Itzik and Armstrong, Omri"
        " and Koenigstein, Noam",
        "Grad-SAM: Explaining Transformers via Gradient Self-Attention Maps",
        "CIKM",
        2021,
    ),
    Paper(
        "bhatt2020evaluating",
        "Bhatt, Umang and Weller, Adrian and Moura, Jos{\\'e} M. F.",
        "Evaluating and Aggregating Feature-based Model Explanations",
        "IJCAI",
        2020,
    ),
    Paper(
        "bousselham2024legrad",
        "Bousselham, Walid and Boggust, Angie and Chaybouti, Sofian and Strobelt, Hendrik and Kuehne, Hilde",
        "LeGrad: An Explainability Method for Vision Transformers via Feature Formation Sensitivity",
        "arXiv",
        2024,
    ),
    Paper(
        "chattopadhay2018gradcampp",
        "Chattopadhay, Aditya and Sarkar, Anirban and Howlader, Prantik and Balasubramanian, Vineeth N",
        "Grad-CAM++: Generalized Gradient-Based Visual Explanations for Deep Convolutional Networks",
        "WACV",
        2018,
    ),
    Paper(
        "chefer2021generic",
        "Chefer, Hila and Gur, Shir and Wolf, Lior",
        "Generic Attention-model Explainability for Interpreting Bi-Modal and Encoder-Decoder Transformers",
        "ICCV",
        2021,
    ),
    Paper(
        "chefer2021transformer",
        "Chefer, Hila and Gur, Shir and Wolf, Lior",
        "Transformer Interpretability Beyond Attention Visualization",
        "CVPR",
        2021,
    ),
    Paper(
        "desai2020ablationcam",
        "Desai, Saurabh and Ramaswamy, Harish G.",
        "Ablation-CAM: Visual Explanations for Deep Convolutional Network via Gradient-free Localization",
        "WACV",
        2020,
    ),
    Paper(
        "draelos2020hirescam",
        "Draelos, Rachel Lea and Carin, Lawrence",
        "Use HiResCAM instead of Grad-CAM for faithful explanations of convolutional neural networks",
        "arXiv",
        2020,
    ),
    Paper(
        "dosovitskiy2021image",
        "Dosovitskiy, Alexey and Beyer, Lucas and Kolesnikov, Alexander and others",
        "An Image is Worth 16x16 Words: Transformers for Image Recognition at Scale",
        "ICLR",
        2021,
    ),
    Paper(
        "englebert2023explaining",
        "Englebert, Alexandre and Stassin, S{\\'e}drick and Nanfack, G{\\'e}raldin and Mahmoudi, Sidi Ahmed"
        " and Siebert, Xavier and Cornu, Olivier and De Vleeschouwer, Christophe",
        "Explaining through Transformer Input Sampling",
        "ICCV Workshops",
        2023,
    ),
    Paper(
        "fu2020axiom",
        "Fu, Ruigang and Hu, Qingyong and Dong, Xiaohu and Guo, Yulan and Gao, Yinghui and Li, Biao",
        "Axiom-based Grad-CAM: Towards Accurate Visualization and Explanation of CNNs",
        "BMVC",
        2020,
    ),
    Paper(
        "ferrando2022measuring",
        "Ferrando, Javier and G{\\'a}llego, Gerard I. and Costa-juss{\\`a}, Marta R.",
        "Measuring the Mixing of Contextual Information in the Transformer",
        "EMNLP",
        2022,
    ),
    Paper(
        "gildenblat2021pytorch",
        "Gildenblat, Jacob and others",
        "PyTorch library for CAM methods",
        "GitHub",
        2021,
    ),
    Paper(
        "hong2025coiba",
        "Hong, Jung-Ho and Kim, Ho-Joong and Jeon, Kyu-Sung and Lee, Seong-Whan",
        "Comprehensive Information Bottleneck for Unveiling Universal Attribution to Interpret Vision Transformers",
        "CVPR",
        2025,
    ),
    Paper(
        "jiang2021layercam",
        "Jiang, Peng-Tao and Zhang, Chang-Bin and Hou, Qibin and Cheng, Ming-Ming and Wei, Yunchao",
        "LayerCAM: Exploring Hierarchical Class Activation Maps for Localization",
        "IEEE TIP",
        2021,
    ),
    Paper(
        "kobayashi2020attention",
        "Kobayashi, Goro and Kuribayashi, Tatsuki and Yokoi, Sho and Inui, Kentaro",
        "Attention is Not Only a Weight: Analyzing Transformers with Vector Norms",
        "EMNLP",
        2020,
    ),
    Paper(
        "kobayashi2021incorporating",
        "Kobayashi, Goro and Kuribayashi, Tatsuki and Yokoi, Sho and Inui, Kentaro",
        "Incorporating Residual and Normalization Layers into Analysis of Masked Language Models",
        "EMNLP",
        2021,
    ),
    Paper(
        "mehri2024skipplus",
        "Mehri, Faridoun and Fayyaz, Mohsen and Soleymani Baghshah, Mahdieh and Pilehvar, Mohammad Taher",
        "SkipPLUS: Skip the First Few Layers to Better Explain Vision Transformers",
        "CVPR Workshops",
        2024,
    ),
    Paper(
        "modarressi2022globenc",
        "Modarressi, Ali and Fayyaz, Mohsen and Yaghoobzadeh, Yadollah and Pilehvar, Mohammad Taher",
        "GlobEnc: Quantifying Global Token Attribution by Incorporating the Whole Encoder Layer in Transformers",
        "NAACL",
        2022,
    ),
    Paper(
        "modarressi2023decompx",
        "Modarressi, Ali and Fayyaz, Mohsen and Aghazadeh, Ehsan and Yaghoobzadeh, Yadollah"
        " and Pilehvar, Mohammad Taher",
        "DecompX: Explaining Transformers Decisions by Propagating Token Decomposition",
        "ACL",
        2023,
    ),
    Paper(
        "qiang2022attcat",
        "Qiang, Yao and Pan, Deng and Li, Chengyin and Li, Xin and Jang, Rhongho and Zhu, Dongxiao",
        "AttCAT: Explaining Transformers via Attentive Class Activation Tokens",
        "NeurIPS",
        2022,
    ),
    Paper(
        "muhammad2020eigencam",
        "Muhammad, Mohammed Bany and Yeasin, Mohammed",
        "Eigen-CAM: Class Activation Map using Principal Components",
        "IJCNN",
        2020,
    ),
    Paper(
        "schulz2020iba",
        "Schulz, Karl and Sixt, Leon and Tombari, Federico and Landgraf, Tim",
        "Restricting the Flow: Information Bottlenecks for Attribution",
        "ICLR",
        2020,
    ),
    Paper(
        "selvaraju2017gradcam",
        "Selvaraju, Ramprasaath R. and Cogswell, Michael and Das, Abhishek and Vedantam, Ramakrishna"
        " and Parikh, Devi and Batra, Dhruv",
        "Grad-CAM: Visual Explanations from Deep Networks via Gradient-based Localization",
        "ICCV",
        2017,
    ),
    Paper(
        "shrikumar2016not",
        "Shrikumar, Avanti and Greenside, Peyton and Shcherbina, Anna and Kundaje, Anshul",
        "Not Just a Black Box: Learning Important Features Through Propagating Activation Differences",
        "arXiv",
        2016,
    ),
    Paper(
        "shrikumar2017learning",
        "Shrikumar, Avanti and Greenside, Peyton and Kundaje, Anshul",
        "Learning Important Features Through Propagating Activation Differences",
        "ICML",
        2017,
    ),
    Paper(
        "simonyan2014deep",
        "Simonyan, Karen and Vedaldi, Andrea and Zisserman, Andrew",
        "Deep Inside Convolutional Networks: Visualising Image Classification Models and Saliency Maps",
        "ICLR Workshop",
        2014,
    ),
    Paper(
        "smilkov2017smoothgrad",
        "Smilkov, Daniel and Thorat, Nikhil and Kim, Been and Vi{\\'e}gas, Fernanda and Wattenberg, Martin",
        "SmoothGrad: removing noise by adding noise",
        "ICML Workshop",
        2017,
    ),
    Paper(
        "springenberg2015striving",
        "Springenberg, Jost Tobias and Dosovitskiy, Alexey and Brox, Thomas and Riedmiller, Martin",
        "Striving for Simplicity: The All Convolutional Net",
        "ICLR Workshop",
        2015,
    ),
    Paper(
        "srinivas2019full",
        "Srinivas, Suraj and Fleuret, Fran{\\c{c}}ois",
        "Full-Gradient Representation for Neural Network Visualization",
        "NeurIPS",
        2019,
    ),
    Paper(
        "sundararajan2017axiomatic",
        "Sundararajan, Mukund and Taly, Ankur and Yan, Qiqi",
        "Axiomatic Attribution for Deep Networks",
        "ICML",
        2017,
    ),
    Paper(
        "walter2025now",
        "Walter, Nils Philipp and Vreeken, Jilles and Fischer, Jonas",
        "Now you see Me! Attribution Distributions Reveal What is Truly Important for a Prediction",
        "arXiv",
        2025,
    ),
    Paper(
        "wang2020scorecam",
        "Wang, Haofan and Wang, Zifan and Du, Mengnan and Yang, Fan and Zhang, Zijian and Ding, Sirui"
        " and Mardziel, Piotr and Hu, Xia",
        "Score-CAM: Score-Weighted Visual Explanations for Convolutional Neural Networks",
        "CVPR Workshops",
        2020,
    ),
    Paper(
        "wu2024tokentm",
        "Wu, Junyi and Duan, Bin and Kang, Weitai and Tang, Hao and Yan, Yan",
        "Token Transformation Matters: Towards Faithful Post-hoc Explanation for Vision Transformer",
        "CVPR",
        2024,
    ),
)
PAPERS: dict[str, Paper] = {paper.key: paper for paper in _ALL}
