{{- define "exegpt.name" -}}{{ .Release.Name | trunc 50 | trimSuffix "-" }}{{- end }}

{{- define "exegpt.account" -}}{{ .Values.serviceAccount.name | default (include "exegpt.name" .) }}{{- end }}

{{- define "exegpt.labels" -}}
app.kubernetes.io/name: exegpt-operator
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}

{{- define "exegpt.selector" -}}
app.kubernetes.io/name: exegpt-operator
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- /* What the operator does to objects of the namespaces it looks after. */}}
{{- define "exegpt.rules" -}}
- apiGroups: [exegpt.dev]
  resources: [exegptdeployments]
  verbs: [get, list, watch, patch]
- apiGroups: [exegpt.dev]
  resources: [exegptprofiles]
  verbs: [get, list, watch, create, patch]
- apiGroups: [exegpt.dev]
  resources: [exegptdeployments/status, exegptprofiles/status]
  verbs: [get, patch]
- apiGroups: [apps]
  resources: [statefulsets]
  verbs: [get, list, watch, create, patch]
- apiGroups: [batch]
  resources: [jobs]
  verbs: [get, list, watch, create, patch]
- apiGroups: [""]
  resources: [pods]
  verbs: [get, list, watch, patch, delete]
- apiGroups: [""]
  resources: [services]
  verbs: [get, list, watch, create, patch]
- apiGroups: [""]
  resources: [configmaps]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [""]
  resources: [secrets]  # by name: never listed
  verbs: [get, create]
- apiGroups: [""]
  resources: [persistentvolumeclaims]
  verbs: [get]
- apiGroups: [""]
  resources: [events]
  verbs: [create, list]
{{- end }}
