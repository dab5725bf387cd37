"""The server's description of itself, made from the models that check requests."""

from __future__ import annotations

from typing import Any

from pydantic.json_schema import models_json_schema

from edgespec import __version__
from edgespec.server.fields import ChatRequest, CompletionRequest

_REFUSALS = {
    "400": "The request is wrong: `param` names the field.",
    "404": "There is no such model.",
    "408": "The body did not come in time.",
    "413": "The body is too large.",
    "415": "The body is not application/json.",
    "429": "The queue is full; Retry-After says when to try again.",
    "500": "The model failed.",
    "503": "The server ends or has too many requests at once, or the model cannot be loaded.",
}

_ERROR = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type", "param", "code"],
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string"},
                "param": {"type": ["string", "null"]},
                "code": {"type": ["string", "null"]},
            },
        }
    },
}

_COMPLETION = {
    "type": "object",
    "required": ["id", "object", "created", "model", "choices", "usage"],
    "properties": {
        "id": {"type": "string"},
        "object": {"enum": ["chat.completion", "text_completion"]},
        "created": {"type": "integer"},
        "model": {"type": "string"},
        "choices": {
            "type": "array",
            "items": {
                "type": "object",
                "required": ["index", "finish_reason", "logprobs"],
                "properties": {
                    "index": {"type": "integer"},
                    "finish_reason": {"enum": ["stop", "length", "tool_calls"]},
                    "logprobs": {"type": ["object", "null"]},
                    "text": {"type": "string"},
                    "message": {
                        "type": "object",
                        "required": ["role", "content"],
                        "properties": {
                            "role": {"const": "assistant"},
                            "content": {"type": ["string", "null"]},
                            "reasoning_content": {"type": "string"},
                            "tool_calls": {"type": "array", "items": {"type": "object"}},
                        },
                    },
                },
            },
        },
        "usage": {
            "type": "object",
            "required": ["prompt_tokens", "completion_tokens", "total_tokens"],
            "properties": {
                "prompt_tokens": {"type": "integer"},
                "completion_tokens": {"type": "integer"},
                "total_tokens": {"type": "integer"},
            },
        },
    },
}


def describe(with_key: bool) -> dict[str, Any]:
    """The OpenAPI 3.1 document. with_key: requests need a key."""
    bodies = [(ChatRequest, "validation"), (CompletionRequest, "validation")]
    _, schemas = models_json_schema(bodies, ref_template="#/components/schemas/{model}")  # type: ignore[arg-type]
    components: dict[str, Any] = {
        "schemas": {**schemas["$defs"], "Error": _ERROR, "Completion": _COMPLETION},
    }
    strangers = {"401": _refusal("The key is missing or wrong.")} if with_key else {}
    strangers["403"] = _refusal("The server was called by a name that is not its own.")
    paths: dict[str, Any] = {
        "/v1/chat/completions": {"post": _generation("Answer a conversation.", "ChatRequest", strangers)},
        "/v1/completions": {"post": _generation("Continue a text.", "CompletionRequest", strangers)},
        "/v1/models": {"get": _reading("The model that is served.", strangers)},
        "/v1/models/{model}": {
            "get": {
                **_reading("One model.", {**strangers, "404": _refusal(_REFUSALS["404"])}),
                "parameters": [
                    {"name": "model", "in": "path", "required": True, "schema": {"type": "string"}}
                ],
            }
        },
        "/v1/edgespec/stats": {"get": _reading("What the server is doing and has done.", strangers)},
        "/metrics": {"get": _reading("Counters for Prometheus.", strangers, "text/plain")},
        "/health": {"get": _reading("Whether the server is there.", {"403": strangers["403"]})},
        "/openapi.json": {"get": _reading("This description.", strangers)},
    }
    document: dict[str, Any] = {
        "openapi": "3.1.0",
        "info": {"title": "edgespec", "version": __version__},
        "paths": paths,
        "components": components,
    }
    if with_key:
        components["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
        document["security"] = [{"key": []}]
        paths["/health"]["get"]["security"] = []
    return document


def _generation(summary: str, body: str, strangers: dict[str, Any]) -> dict[str, Any]:
    schema = {"$ref": f"#/components/schemas/{body}"}
    answer = {
        "description": "The answer; with `stream`, chunks of it as server-sent events.",
        "content": {
            "application/json": {"schema": {"$ref": "#/components/schemas/Completion"}},
            "text/event-stream": {"schema": {"type": "string"}},
        },
    }
    refusals = {status: _refusal(about) for status, about in _REFUSALS.items()}
    return {
        "summary": summary,
        "requestBody": {"required": True, "content": {"application/json": {"schema": schema}}},
        "responses": {"200": answer, **refusals, **strangers},
    }


def _reading(summary: str, strangers: dict[str, Any], kind: str = "application/json") -> dict[str, Any]:
    schema = {"type": "string"} if kind == "text/plain" else {"type": "object"}
    answer = {"description": summary, "content": {kind: {"schema": schema}}}
    return {"summary": summary, "responses": {"200": answer, **strangers}}


def _refusal(about: str) -> dict[str, Any]:
    schema = {"$ref": "#/components/schemas/Error"}
    return {"description": about, "content": {"application/json": {"schema": schema}}}
