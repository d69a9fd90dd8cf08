"""Named model configurations, each a function, so that stating one builds nothing.

Those of published models have the fields of the published ``config.json``, whose parameters they count to the last.
"""

from marin_train.configs import ModelConfig, MoEConfig, RopeScaling


def llama_nano(vocab_size: int = 8192) -> ModelConfig:
    """A model that learns from about a million tokens in minutes on a laptop; train it on sequences of 256, 8 a step.

    At an equal time on two cores, such short sequences reach a lower loss than ones of 512 or batches of 4, and a
    separate head a lower one than a head tied to the embeddings.
    """
    return ModelConfig(
        vocab_size=vocab_size,
        hidden_dim=256,
        num_layers=4,
        num_heads=4,
        num_kv_heads=4,
        head_dim=64,
        mlp_dim=768,
        max_seq_len=512,
        rope_theta=10_000.0,
    )


def llama_30m(vocab_size: int = 8192) -> ModelConfig:
    """A model of 30.4M parameters, for measurements at a size where products dominate."""
    return ModelConfig(
        vocab_size=vocab_size,
        hidden_dim=512,
        num_layers=8,
        num_heads=8,
        num_kv_heads=4,
        head_dim=64,
        mlp_dim=1280,
        max_seq_len=2048,
        rope_theta=10_000.0,
    )


def qwen3_nano(vocab_size: int = 8192) -> ModelConfig:
    """The size of `llama_nano` with the parts of Qwen3."""
    return ModelConfig(
        family="qwen3",
        vocab_size=vocab_size,
        hidden_dim=256,
        num_layers=4,
        num_heads=4,
        num_kv_heads=2,
        head_dim=64,
        mlp_dim=768,
        max_seq_len=512,
        rope_theta=10_000.0,
        norm_eps=1e-6,
    )


def qwen3_moe_nano(vocab_size: int = 8192) -> ModelConfig:
    """A `qwen3_nano` whose feed-forward layers are 16 experts, of which 2 see a token: 19.7M parameters without
    embedding and head, 3.2M of them active."""
    return ModelConfig(
        family="qwen3_moe",
        vocab_size=vocab_size,
        hidden_dim=256,
        num_layers=4,
        num_heads=4,
        num_kv_heads=2,
        head_dim=64,
        mlp_dim=0,
        max_seq_len=512,
        rope_theta=10_000.0,
        norm_eps=1e-6,
        moe=MoEConfig(num_experts=16, top_k=2, expert_dim=384),
    )


def gemma3_nano(vocab_size: int = 8192) -> ModelConfig:
    """The size of `llama_nano` with the parts of Gemma 3: five layers with a window of 128, and one without."""
    return ModelConfig(
        family="gemma3",
        vocab_size=vocab_size,
        hidden_dim=256,
        num_layers=6,
        num_heads=4,
        num_kv_heads=1,
        head_dim=64,
        mlp_dim=768,
        max_seq_len=512,
        rope_theta=1_000_000.0,
        local_rope_theta=10_000.0,
        sliding_window=128,
        global_every=6,
        norm_eps=1e-6,
        tie_embeddings=True,
    )


def llama_3_1_8b() -> ModelConfig:
    """Llama 3.1 8B: 8,030,261,248 parameters."""
    return ModelConfig(
        vocab_size=128_256,
        hidden_dim=4096,
        num_layers=32,
        num_heads=32,
        num_kv_heads=8,
        head_dim=128,
        mlp_dim=14_336,
        max_seq_len=131_072,
        rope_scaling=RopeScaling(kind="llama3", factor=8.0, original_max_seq_len=8192),
    )


def llama_3_2_1b() -> ModelConfig:
    """Llama 3.2 1B: 1,235,814,400 parameters, its head tied to its embeddings."""
    return ModelConfig(
        vocab_size=128_256,
        hidden_dim=2048,
        num_layers=16,
        num_heads=32,
        num_kv_heads=8,
        head_dim=64,
        mlp_dim=8192,
        max_seq_len=131_072,
        rope_scaling=RopeScaling(kind="llama3", factor=32.0, original_max_seq_len=8192),
        tie_embeddings=True,
    )


def llama_3_2_3b() -> ModelConfig:
    """Llama 3.2 3B: 3,212,749,824 parameters, its head tied to its embeddings."""
    return ModelConfig(
        vocab_size=128_256,
        hidden_dim=3072,
        num_layers=28,
        num_heads=24,
        num_kv_heads=8,
        head_dim=128,
        mlp_dim=8192,
        max_seq_len=131_072,
        rope_scaling=RopeScaling(kind="llama3", factor=32.0, original_max_seq_len=8192),
        tie_embeddings=True,
    )


def qwen3_0_6b() -> ModelConfig:
    """Qwen3 0.6B: 596,049,920 parameters, its head tied to its embeddings."""
    return _qwen3(hidden_dim=1024, num_layers=28, num_heads=16, mlp_dim=3_072, tie_embeddings=True)


def qwen3_1_7b() -> ModelConfig:
    """Qwen3 1.7B: 1,720,574,976 parameters, its head tied to its embeddings."""
    return _qwen3(hidden_dim=2048, num_layers=28, num_heads=16, mlp_dim=6_144, tie_embeddings=True)


def qwen3_4b() -> ModelConfig:
    """Qwen3 4B: 4,022,468,096 parameters, its head tied to its embeddings."""
    return _qwen3(hidden_dim=2560, num_layers=36, num_heads=32, mlp_dim=9_728, tie_embeddings=True)


def qwen3_8b() -> ModelConfig:
    """Qwen3 8B: 8,190,735,360 parameters."""
    return _qwen3(hidden_dim=4096, num_layers=36, num_heads=32, mlp_dim=12_288, tie_embeddings=False)


def _qwen3(*, hidden_dim: int, num_layers: int, num_heads: int, mlp_dim: int, tie_embeddings: bool) -> ModelConfig:
    return ModelConfig(
        family="qwen3",
        vocab_size=151_936,
        hidden_dim=hidden_dim,
        num_layers=num_layers,
        num_heads=num_heads,
        num_kv_heads=8,
        head_dim=128,
        mlp_dim=mlp_dim,
        max_seq_len=40_960,
        rope_theta=1_000_000.0,
        norm_eps=1e-6,
        tie_embeddings=tie_embeddings,
    )


def mixtral_8x7b() -> ModelConfig:
    """Mixtral 8x7B: 46,702,792,704 parameters, 12,879,925,248 of them active."""
    return ModelConfig(
        family="mixtral",
        vocab_size=32_000,
        hidden_dim=4096,
        num_layers=32,
        num_heads=32,
        num_kv_heads=8,
        head_dim=128,
        mlp_dim=0,
        max_seq_len=32_768,
        rope_theta=1_000_000.0,
        moe=MoEConfig(num_experts=8, top_k=2, expert_dim=14_336, balance="switch"),
    )


def qwen3_30b_a3b() -> ModelConfig:
    """Qwen3 30B A3B: 30,532,122,624 parameters, 3,353,032,704 of them active."""
    return ModelConfig(
        family="qwen3_moe",
        vocab_size=151_936,
        hidden_dim=2048,
        num_layers=48,
        num_heads=32,
        num_kv_heads=4,
        head_dim=128,
        mlp_dim=0,
        max_seq_len=40_960,
        rope_theta=1_000_000.0,
        norm_eps=1e-6,
        moe=MoEConfig(num_experts=128, top_k=8, expert_dim=768, balance="switch"),
    )


def marin_moe_nano(vocab_size: int = 8192) -> ModelConfig:
    """The parts of `marin_moe_535b` at the size of a laptop: 16 experts of a latent width, of which 2 see a token."""
    return ModelConfig(
        family="marin_moe",
        vocab_size=vocab_size,
        hidden_dim=256,
        num_layers=4,
        num_heads=4,
        num_kv_heads=2,
        head_dim=64,
        mlp_dim=0,
        max_seq_len=512,
        rope_theta=10_000.0,
        rotary_dim=32,
        sliding_window=128,
        global_every=4,
        query_scale=1.3 * 64**-0.5,
        norm_gate_dim=32,
        moe=MoEConfig(num_experts=16, top_k=2, expert_dim=256, shared_dim=256, latent_dim=128, combine="sigmoid"),
    )


def marin_moe_535b() -> ModelConfig:
    """Marin's published mixture of experts: 535,477,106,688 parameters, 384 experts a layer, of which 8 see a token.

    The window of its local layers, which no count depends on, is taken to be 4,096.
    """
    return ModelConfig(
        family="marin_moe",
        vocab_size=128_256,
        hidden_dim=6144,
        num_layers=48,
        num_heads=48,
        num_kv_heads=12,
        head_dim=128,
        mlp_dim=0,
        max_seq_len=8192,
        rotary_dim=64,
        sliding_window=4096,
        global_every=4,
        query_scale=1.3 * 128**-0.5,
        norm_gate_dim=128,
        moe=MoEConfig(num_experts=384, top_k=8, expert_dim=3072, shared_dim=6144, latent_dim=3072, combine="sigmoid"),
    )


def gemma3_270m() -> ModelConfig:
    """Gemma 3 270M: 268,098,176 parameters, two thirds of them embeddings."""
    return ModelConfig(
        family="gemma3",
        vocab_size=262_144,
        hidden_dim=640,
        num_layers=18,
        num_heads=4,
        num_kv_heads=1,
        head_dim=256,
        mlp_dim=2048,
        max_seq_len=32_768,
        rope_theta=1_000_000.0,
        local_rope_theta=10_000.0,
        sliding_window=512,
        global_every=6,
        norm_eps=1e-6,
        tie_embeddings=True,
    )


def gemma3_1b() -> ModelConfig:
    """Gemma 3 1B: 999,885,952 parameters."""
    return ModelConfig(
        family="gemma3",
        vocab_size=262_144,
        hidden_dim=1152,
        num_layers=26,
        num_heads=4,
        num_kv_heads=1,
        head_dim=256,
        mlp_dim=6912,
        max_seq_len=32_768,
        rope_theta=1_000_000.0,
        local_rope_theta=10_000.0,
        sliding_window=512,
        global_every=6,
        norm_eps=1e-6,
        tie_embeddings=True,
    )


def gemma3_4b() -> ModelConfig:
    """The text model of Gemma 3 4B: 3,880,263,168 parameters."""
    return ModelConfig(
        family="gemma3",
        vocab_size=262_208,
        hidden_dim=2560,
        num_layers=34,
        num_heads=8,
        num_kv_heads=4,
        head_dim=256,
        mlp_dim=10_240,
        max_seq_len=131_072,
        rope_theta=1_000_000.0,
        rope_scaling=RopeScaling(kind="linear", factor=8.0),
        local_rope_theta=10_000.0,
        sliding_window=1024,
        global_every=6,
        norm_eps=1e-6,
        tie_embeddings=True,
    )
