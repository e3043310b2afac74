{{- define "migratory.name" -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- end }}

{{- define "migratory.serviceAccount" -}}
{{- .Values.serviceAccount.name | default (include "migratory.name" .) -}}
{{- end }}

{{- define "migratory.selector" -}}
app.kubernetes.io/name: migratory-operator
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "migratory.labels" -}}
{{ include "migratory.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/component: operator
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end }}

{{- /* The image with this repository key. */ -}}
{{- define "migratory.image" -}}
{{- $root := index . 0 -}}
{{- printf "%s%s:%s" $root.Values.image.registry (index $root.Values.image (index . 1)) ($root.Values.image.tag | default $root.Chart.AppVersion) -}}
{{- end }}

{{- /* The watched namespaces as a JSON list; empty for all. */ -}}
{{- define "migratory.namespaces" -}}
{{- if eq .Values.operator.scope "namespace" -}}
{{- concat (list .Release.Namespace) .Values.operator.namespaces | uniq | toJson -}}
{{- else -}}
[]
{{- end -}}
{{- end }}

{{- /* A map as NAME=VALUE,NAME=VALUE. */ -}}
{{- define "migratory.pairs" -}}
{{- $pairs := list -}}
{{- range $name, $value := . }}{{ $pairs = append $pairs (printf "%s=%s" $name $value) }}{{ end -}}
{{- join "," $pairs -}}
{{- end }}

{{- define "migratory.podSecurity" -}}
runAsNonRoot: true
runAsUser: 10001
runAsGroup: 10001
seccompProfile: {type: RuntimeDefault}
{{- end }}

{{- define "migratory.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end }}

{{- /* The operator's permissions in a namespace that it watches. */ -}}
{{- define "migratory.rules" -}}
- apiGroups: [migratory.dev]
  resources: [migratoryclusters]
  verbs: [get, list, watch]
- apiGroups: [migratory.dev]
  resources: [slareports]
  verbs: [get, list, watch, create, delete]
- apiGroups: [migratory.dev]
  resources: [migratoryclusters/status, slareports/status]
  verbs: [patch]
- apiGroups: [""]
  resources: [configmaps, services, serviceaccounts]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [apps]
  resources: [statefulsets]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [networking.k8s.io]
  resources: [networkpolicies]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [monitoring.coreos.com]
  resources: [servicemonitors]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [policy]
  resources: [poddisruptionbudgets]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [""]
  resources: [pods]
  verbs: [get, list, watch, delete]
{{- /* The claims of ZooKeeper's members: growth, and the mark of those that have data. */}}
- apiGroups: [""]
  resources: [persistentvolumeclaims]
  verbs: [list, patch]
- apiGroups: [""]
  resources: [pods/eviction]
  verbs: [create]
- apiGroups: [""]
  resources: [events]
  verbs: [create]
{{- /* One Lease for each namespace says which operator serves it. */}}
- apiGroups: [coordination.k8s.io]
  resources: [leases]
  verbs: [get, create, update, delete]
{{- /* Runs that began while reports were enabled are observed and ended also afterwards. */}}
- apiGroups: [batch]
  resources: [jobs]
  verbs: [get, delete]
{{- if .Values.reports.enabled }}
{{- /* Each report has a Job and up to two accounts, whose permissions the operator must hold to grant them. */}}
- apiGroups: [batch]
  resources: [jobs]
  verbs: [create]
- apiGroups: [rbac.authorization.k8s.io]
  resources: [roles, rolebindings]
  verbs: [create, patch]
- apiGroups: [""]
  resources: [pods]
  verbs: [create]
{{- /* The operator asks for the metadata of the Secrets that reports name, and creates one for each run. */}}
- apiGroups: [""]
  resources: [secrets]
  verbs: [get, create]
{{- end }}
{{- end }}
